r"""Divide a run into phases, and compute what a batch size that changes between them takes.

Between two losses a constant batch size takes :math:`\Delta S(B)` steps: the curve of steps to target again, with a
critical batch size b of the phase alone, where steps times examples are least. With progress s counted in steps without
noise, :math:`S = \int (1 + B_n/B)\,ds` and :math:`E = \int (B + B_n)\,ds` (McCandlish et al. 2018, arXiv 1812.06162,
appendix D), so on the hyperbola :math:`\Delta S = \Delta s (1 + b/B)`, and b is the mean noise scale of the phase. The
critical batch size of a whole run is an average over its phases, and smaller than that at its end.

The only assumption is that the steps in a phase do not depend on the batch sizes before it, at the same loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.quantities import Array, Quantity


@dataclass(frozen=True, kw_only=True)
class PhaseEstimate:
    """One phase of a run.

    Attributes:
        where: where it ends, in words.
        critical: critical batch size of the phase in examples; no value if it lies beyond what was measured.
        log_steps: function from batch sizes ``[M]`` to ln of the steps in the phase, shape ``[1 + R, M]``: the
            estimate, then the draws; none of these without an interval.
    """

    where: str
    critical: Quantity
    log_steps: Callable[[Array], Array] = field(repr=False)


@dataclass(frozen=True)
class PlanCost:
    """Cost of stages up to the end of the last phase; the first row is the estimate, the others are the draws.

    Attributes:
        stages: steps in each stage, shape ``[1 + R, T]``.
        sizes: batch size of each stage, shape ``[T]``.
    """

    stages: Array
    sizes: Array

    @property
    def steps(self) -> Array:
        """Steps of all stages, shape ``[1 + R]``."""
        return np.asarray(self.stages.sum(axis=1))

    @property
    def examples(self) -> Array:
        """Examples of all stages, shape ``[1 + R]``."""
        return np.asarray(self.stages @ self.sizes)


def steps_of(phases: Sequence[PhaseEstimate], sizes: Array) -> Array:
    """Return the steps in every phase at every constant batch size ``[M]``, shape ``[1 + R, phases, M]``."""
    return np.stack([np.exp(phase.log_steps(sizes)) for phase in phases], axis=1)


def along(phases: Sequence[PhaseEstimate], starts: Sequence[float], sizes: Sequence[float]) -> PlanCost:
    """Return the cost of a table of stages up to the end of the last phase, from the start and batch size of each
    stage."""
    steps = steps_of(phases, np.asarray(sizes, dtype=float))
    rows = len(steps)
    done, seen, taken = np.zeros(rows), np.zeros(rows), np.zeros((rows, len(sizes)))
    for stage, (size, end) in enumerate(zip(sizes, [*starts[1:], np.inf], strict=True)):
        # steps from the start to each end of a phase if all of them were at this batch size
        ends = np.concatenate([np.zeros((rows, 1)), np.cumsum(steps[:, :, stage], axis=1)], axis=1)
        here = _between(np.broadcast_to(np.arange(ends.shape[1], dtype=float), ends.shape), ends, done)
        there = np.minimum(here + np.ceil(np.maximum(end - seen, 0.0) / size), ends[:, -1])
        taken[:, stage] = there - here
        seen += size * taken[:, stage]
        done = _between(ends, np.broadcast_to(np.arange(ends.shape[1], dtype=float), ends.shape), there)
    return PlanCost(taken, np.asarray(sizes, dtype=float))


def _between(x: Array, y: Array, at: Array) -> Array:
    """Interpolate ``(x, y)`` ``[R, N]`` linearly at ``at`` ``[R]``, row by row, with x increasing."""
    row = np.arange(len(x))
    left = np.clip((x <= at[:, None]).sum(axis=1) - 1, 0, x.shape[1] - 2)
    x0, x1, y0, y1 = x[row, left], x[row, left + 1], y[row, left], y[row, left + 1]
    share = np.clip((at - x0) / np.maximum(x1 - x0, 1e-300), 0.0, 1.0)
    return np.asarray(y0 + share * (y1 - y0))


def lower_ends(best: Array, confidence: float) -> Array:
    """Return the lower end of the two-sided interval of each phase's best batch size, but never smaller than that of an
    earlier phase; without draws, the best one itself."""
    ends = best[0] if len(best) == 1 else np.quantile(best[1:], 0.5 - confidence / 2, axis=0, method="lower")
    return np.maximum.accumulate(np.minimum(ends, best[0]))


def doubled(phases: Sequence[PhaseEstimate], first: float, largest: float) -> Array:
    """Return batch sizes from ``first`` to ``largest``, shape ``[phases]``, that double where the lower end of a
    phase's critical batch size exceeds twice the batch size (Merrill et al., arXiv 2505.23971); not where there is no
    lower end."""
    size, sizes = first, []
    for phase in phases:
        drawn = len(phase.log_steps(np.ones(1))) > 1
        low = phase.critical.interval[0] if drawn else phase.critical.value
        while low is not None and low > 2 * size and 2 * size <= largest:
            size *= 2
        sizes.append(size)
    return np.array(sizes)
