"""The local critical batch size, estimated from the final losses of the branches of a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

from analysis.arrays import Array


class BranchLosses(NamedTuple):
    """Losses of the branches of one checkpoint after equal numbers of examples. Branches of one seed see the same
    examples in the same order.

    Attributes:
        factors: k, the ratio of the batch size to that of the trunk, above 0 and increasing, ``[K]``.
        losses: :func:`cbs.trial.record.end_mean` of the metric, lower is better, ``[N, K]`` for N seeds; NaN where no
            branch was run, infinity where it diverged.
    """

    factors: Array
    losses: Array
