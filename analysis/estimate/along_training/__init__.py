"""What an answer tells of further columns of the trials at the best learning rates, such as those of diagnostics.

Extensions register it, see :mod:`cbs.registry.extensions`; the noise scale is in every answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.estimate.noise import Columns
from cbs.registry import Registry


@dataclass(frozen=True, kw_only=True)
class AlongTraining:
    """Curves along training.

    Attributes:
        curves: a table of the per-step columns of one trial per seed, see :func:`cbs.trial.trial_files.read_steps`, of
            their steps to target, and of the batch size; without rows where nothing was recorded.
        told: rows of the answer's JSON from the table and the confidence of intervals; ``None`` for none.
    """

    curves: Callable[[Sequence[Columns], Sequence[float], int], pd.DataFrame]
    told: Callable[[pd.DataFrame, float], list[dict[str, Any]]] | None = None


ALONG_TRAINING: Registry[AlongTraining] = Registry(
    "curve along training", "analysis.estimate.along_training", instance_of=AlongTraining
)
