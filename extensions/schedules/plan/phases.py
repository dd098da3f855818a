r"""Divide a run into phases, and compute what a batch size that changes between them takes.

Between two losses a constant batch size takes :math:`\Delta S(B)` steps: the curve of steps to target again, with a
critical batch size b of the phase alone, where steps times examples are least. With progress s counted in steps without
noise, :math:`S = \int (1 + B_n/B)\,ds` and :math:`E = \int (B + B_n)\,ds` (McCandlish et al. 2018, arXiv 1812.06162,
appendix D), so on the hyperbola :math:`\Delta S = \Delta s (1 + b/B)`, and b is the mean noise scale of the phase. The
critical batch size of a whole run is an average over its phases, and smaller than that at its end.

The only assumption is that the steps in a phase do not depend on the batch sizes before it, at the same loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from analysis.config import AnalysisConfig
from analysis.estimate.learning_rate_law import LearningRateLaw
from analysis.estimate.prior import StepsCurve
from analysis.quantities import UNKNOWN, Array, Interval, Quantity


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


@dataclass(frozen=True, kw_only=True)
class PhaseSource:
    """The phases of a run, and further known quantities.

    Attributes:
        what: how they were measured, in words.
        optimizer: name, with what distinguishes it from others; empty if unknown.
        phases: the phases.
        whole: the run as one phase, which is only nearly the sum of the others, because each is a curve of its own;
            ``None`` if it was not measured at constant batch sizes.
        measured: smallest and largest batch size for which steps are known.
        critical: critical batch size of all phases together, in examples; ``None`` if unknown.
        grain: number of which batch sizes are multiples, so that they can be run like the measured ones.
        law: law of the learning rate; ``None`` if none was measured.
        best_lrs: batch sizes and the best learning rate at each, interpolated; without those at an edge.
        highest_lrs: batch sizes and the largest learning rate that reached the target at each.
        decays: whether the learning rate of the runs falls; ``None`` if unknown.
    """

    what: str
    optimizer: str = ""
    phases: tuple[PhaseEstimate, ...] = field(repr=False)
    whole: PhaseEstimate | None = field(default=None, repr=False)
    measured: tuple[float, float]
    critical: float | None
    grain: int = 1
    law: LearningRateLaw | None = field(default=None, repr=False)
    best_lrs: tuple[tuple[int, float], ...] = ()
    highest_lrs: tuple[tuple[int, float], ...] = ()
    decays: bool | None = None
    example_unit: str = "example"
    tokens_per_example: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def entire(self) -> tuple[PhaseEstimate, ...]:
        """The run as one phase where that was measured, otherwise all phases."""
        return self.phases if self.whole is None else (self.whole,)

    def best_lr(self, batch_size: int) -> Quantity:
        """Return the best learning rate of a constant run, interpolated linearly in ln lr between the optima.

        The law is not used, because it may lie on one side of all optima nearby, while steps are those at the optima.
        """
        if not self.best_lrs or not self.best_lrs[0][0] <= batch_size <= self.best_lrs[-1][0]:
            return UNKNOWN
        sizes, lrs = np.log(np.array(self.best_lrs)).T
        return Quantity(math.exp(np.interp(math.log(batch_size), sizes, lrs)))


Stretch = tuple[str, float, Interval, float, float]
"""Where a phase of a run ends, in words; its noise scale with the interval, in examples; its steps and examples."""


def of_noise_scales(
    stretches: Sequence[Stretch], config: AnalysisConfig, confidence: float, **about: Any
) -> PhaseSource:
    """Return the phases of a run whose noise scale is known in each of them, as hyperbolas.

    The logarithm of a noise scale is drawn from normal distributions on either side, as wide as its interval at
    ``confidence``, if both ends are known. ``about`` are further attributes of the source.
    """
    phases, wide = [], ndtri(0.5 + confidence / 2)
    for index, (where, value, (low, high), steps, seen) in enumerate(stretches):
        drawn = np.full(0, math.nan)
        if low is not None and high is not None:
            normal = np.random.default_rng(config.seed + index).standard_normal(config.resamples) / wide
            down, up = math.log(value / low), math.log(high / value)
            drawn = value * np.exp(normal * np.where(normal < 0, down, up))
        scales = np.append(value, drawn)
        # at the batch size of the run each step made 1 / (1 + B_n / B) steps of progress
        least = np.log(steps / (1.0 + scales / (seen / steps)))
        curve = StepsCurve(least, np.log(scales), np.ones_like(scales))
        critical = Quantity(value, (low, high))
        phases.append(PhaseEstimate(where=where, critical=critical, log_steps=curve.log_steps))
    # of all phases together: E_min over S_min
    values = np.array([value for _, value, *_ in stretches])
    fewest = steps_of(phases, np.ones(1))[0, :, 0] / (1.0 + values)
    return PhaseSource(
        phases=tuple(phases),
        grain=math.gcd(*(round(seen / steps) for *_, steps, seen in stretches), 8),
        measured=(1.0, math.inf),
        critical=float(fewest @ values / fewest.sum()),
        **about,
    )
