"""Predict the loss of a run that has not been made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Interval
from analysis.config import AnalysisConfig
from analysis.estimate.forms import LossRuns
from analysis.estimate.laws.loss import LossFit
from cbs.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Prediction of one form for one run.

    Attributes:
        form: name of the form.
        parameters, batch_size, steps: N, B and K of the run.
        loss: the predicted loss.
        interval: interval of the loss of such a run; at least as wide as the form's error on the runs left out.
        times_beyond: its compute over the largest measured.
    """

    form: str
    parameters: float
    batch_size: float
    steps: float
    loss: float
    interval: Interval
    times_beyond: float


def points(texts: Sequence[str]) -> list[tuple[float, float, float]]:
    """Parse texts such as ``1e9,512,20000`` into N, B and K; raise ``ConfigError`` unless they are three positive
    numbers."""
    rows = []
    for text in texts:
        try:
            n, b, k = map(float, text.split(","))
        except ValueError:
            n = b = k = np.nan
        if not (n >= 10 and 0 < b < np.inf and k >= 1 and n < np.inf and k < np.inf):
            raise ConfigError(f"--at {text}: it is N,B,K, a model size, a batch size and steps, as in 1e9,512,20000")
        rows.append((n, b, k))
    return rows


def predicted(
    fit: LossFit, runs: LossRuns, place: tuple[float, float, float], error: float, config: AnalysisConfig
) -> Predicted:
    """Predict a run at ``N, B, K`` with ``fit``, fitted to ``runs``; ``error`` is the form's error on runs left out."""
    n, b, k = (np.array([each]) for each in place)
    middle = np.exp(np.log(runs.loss).mean(keepdims=True))
    there = LossRuns(parameters=n, batch_size=b, steps=k, loss=middle, group=np.zeros(1, dtype=int))
    log_loss, low, high = (float(np.exp(each[0])) for each in fit.predicted(there, config, error))
    most = float((runs.parameters * runs.data).max())
    return Predicted(
        form=fit.form,
        parameters=place[0],
        batch_size=place[1],
        steps=place[2],
        loss=log_loss,
        interval=(low, high),
        times_beyond=float((n * b * k)[0]) / most,
    )
