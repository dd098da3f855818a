r"""The local critical batch size by the published rule.

Merrill et al., "Critical Batch Size Revisited" (arXiv 2505.23971, sections 3 and 4): a branch trains with k times the
batch size; :math:`L_k` is its training loss at the end, smoothed by an exponential average with weight 0.5; and
:math:`k^*` is the largest k with :math:`L_{k^*} \le L_k + 0.01` for all tried :math:`k < k^*`. The interval goes from
it to the next k that was tried, and the geometric mean of both is plotted. The paper has one run of every k; here the
losses are means over the seeds that ran every k.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from analysis.arrays import UNKNOWN, Quantity
from analysis.estimate.branches import BranchLosses

SMOOTHING = 0.5
"""Weight of the newest loss in the average."""

TOLERANCE = 0.01
"""Tolerance of the published rule in nats per token."""


def smoothed(losses: Sequence[float] | np.ndarray) -> float:
    """Return the exponential average at the end of a series of losses, started at the first one; NaN without losses."""
    series = [float(loss) for loss in losses] or [math.nan]
    return functools.reduce(lambda average, loss: SMOOTHING * loss + (1 - SMOOTHING) * average, series)


def published(branches: BranchLosses) -> tuple[float | None, Quantity]:
    """Return ``k*`` by the published rule, and the point that the paper plots, with its interval.

    If ``k*`` is the largest k that was run, the point has no value and the interval is open above. A k whose branch
    diverged has not recovered. ``None`` and no value if no seed ran every k, or a branch of the smallest k diverged.
    """
    whole = branches.losses[~np.isnan(branches.losses).any(axis=1)]
    if not len(whole) or not np.isfinite(whole[:, 0]).all():
        return None, UNKNOWN
    means = whole.mean(axis=0)
    held = means <= np.append(np.inf, np.minimum.accumulate(means)[:-1] + TOLERANCE)
    last = int(np.flatnonzero(held)[-1])
    largest = float(branches.factors[last])
    if last + 1 == len(means):
        return largest, Quantity(None, (largest, None))
    after = float(branches.factors[last + 1])
    return largest, Quantity(math.sqrt(largest * after), (largest, after))
