"""The loss of a run that has not been made."""

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
    """What one form says of one run.

    Attributes:
        parameters, batch_size, steps: N, B and K of the run.
        interval: of the loss of such a run; no narrower than the form's error on the runs that were left out.
        times_beyond: its compute over the most that was measured.
    """

    form: str
    parameters: float
    batch_size: float
    steps: float
    loss: float
    interval: Interval
    times_beyond: float


def points(texts: Sequence[str]) -> list[tuple[float, float, float]]:
    """Texts such as ``1e9,512,20000`` as N, B and K; anything but three numbers above 0 is a ``ConfigError``."""
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
    """What ``fit``, fitted to ``runs``, says of a run at ``N, B, K``; ``error`` is the form's on runs left out."""
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
