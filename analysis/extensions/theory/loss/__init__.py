"""The loss of a run of model size N, batch size B and K steps: functional forms, tested on runs that were left out.

The noisy quadratic system of Li and Maddison (2026, arXiv:2605.09154) is compared with Chinchilla's form and Kaplan's
three terms.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.forms import LossRuns
from analysis.estimate.laws.loss import LossFit, fit
from analysis.extensions.theory.loss.critical import Implied, implied
from analysis.extensions.theory.loss.holdout import Holdout, holdout, parsed
from analysis.extensions.theory.loss.predicted import Predicted, points, predicted
from analysis.extensions.theory.loss.rows import read
from analysis.plain import plain, shown
from cbs.errors import ConfigError, DataError

ORDER = ("nqs", "kaplan", "chinchilla")


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Result of :func:`losses`.

    Attributes:
        config: configuration of the analysis.
        name: name of the table.
        runs: the runs.
        fits: fitted forms by name.
        refused: why a form was not fitted, by name.
        holdouts: tests on runs that were left out.
        predictions: predicted losses.
        implied: critical batch sizes, one per form that has one, size and target.
        notes: what was done to the table, and which holdouts are missing.
    """

    config: AnalysisConfig
    name: str
    runs: LossRuns = field(repr=False)
    fits: dict[str, LossFit]
    refused: dict[str, str]
    holdouts: tuple[Holdout, ...]
    predictions: tuple[Predicted, ...]
    implied: tuple[Implied, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.name,
            "runs": len(self.runs.loss),
            "confidence": self.config.confidence,
            "fits": {name: shown(loss_fit) for name, loss_fit in self.fits.items()},
            "refused": self.refused,
            "holdouts": [shown(each) | {"left_out": int(each.left_out.sum())} for each in self.holdouts],
            "predictions": plain(self.predictions),
            "critical_batch_sizes": [_critical(each) for each in self.implied],
            "notes": list(self.notes),
        }


def _critical(implied_critical: Implied) -> dict[str, Any]:
    curve = zip(
        implied_critical.batch_sizes, implied_critical.steps, implied_critical.low, implied_critical.high, strict=True
    )
    names = ("batch_size", "steps", "steps_low", "steps_high")
    finite = ([float(value) if np.isfinite(value) else None for value in row] for row in curve)
    return shown(implied_critical) | {"steps": [dict(zip(names, row, strict=True)) for row in finite]}


def losses(
    source: str | os.PathLike[str] | pd.DataFrame,
    config: AnalysisConfig = DEFAULT,
    *,
    columns: Mapping[str, str] | None = None,
    holdouts: Sequence[str] | None = None,
    at: Sequence[str] = (),
    sizes: Sequence[float] | None = None,
    targets: Sequence[float] | None = None,
) -> Losses:
    """Fit every form of the loss to the runs of a table, and to its smaller runs to test it on the larger ones.

    Args:
        source, columns: see :func:`analysis.extensions.theory.loss.rows.read`.
        config: configuration of the analysis.
        holdouts: axes along which to leave out the largest runs, ``N`` or ``D:1e9``; by default N and D.
        at: runs whose loss to predict, each as ``N,B,K``.
        sizes: model sizes for which to give a critical batch size; by default the largest measured.
        targets: losses to reach; by default the median loss of the largest size.

    Raises:
        DataError: if the table cannot be used, or determines no form; the message names what is missing.
        ConfigError: if an argument is outside its domain.
    """
    asked = [parsed(text) for text in holdouts or ("N", "D")]
    places = points(at)
    for name, values in (("--size", sizes), ("--target", targets)):
        if any(not 0.0 < value < np.inf for value in values or ()):
            raise ConfigError(f"{name} must be above 0 and finite")
    table, runs, notes = read(source, columns)
    fits: dict[str, LossFit] = {}
    refused: dict[str, str] = {}
    for name in ORDER:
        try:
            fits[name] = fit(name, runs, config)
        except ValueError as error:
            refused[name] = str(error)
    if not fits:
        raise DataError(
            f"{table}: no form of the loss can be fitted; {'; '.join(f'{a}: {b}' for a, b in refused.items())}"
        )
    held = []
    for axis, start in asked:
        one = holdout(runs, axis, start, tuple(fits), config)
        held += [one] if one else []
        if one is None:
            notes.append(
                f"--holdout {axis}: all runs are on one side" + (f" of {start:g}" if start else f", at one {axis}")
            )
    errors = {
        name: max((entry.error or 0.0 for one in held for entry in one.entries if entry.form == name), default=0.0)
        for name in fits
    }
    largest = float(runs.parameters.max())
    middle = float(np.median(runs.loss[runs.parameters == largest]))
    curves = [
        implied(fits[name], runs, size, target, config)
        for size in sizes or (largest,)
        for target in targets or (middle,)
        for name in fits
        if name != "chinchilla"
    ]
    return Losses(
        config=config,
        name=table,
        runs=runs,
        fits=fits,
        refused=refused,
        holdouts=tuple(held),
        predictions=tuple(
            predicted(each, runs, place, errors[name], config) for place in places for name, each in fits.items()
        ),
        implied=tuple(curves),
        notes=tuple(notes),
    )
