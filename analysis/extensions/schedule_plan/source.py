"""The input of a plan, however it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from analysis.arrays import UNKNOWN, Array, Interval, Quantity
from analysis.estimate.curves import StepsCurve
from analysis.estimate.laws.learning_rate import LearningRateLaw
from analysis.extensions.schedule_plan.phases import PhaseEstimate


@dataclass(frozen=True, kw_only=True)
class PhaseSource:
    """The phases of a run, and further known quantities.

    Attributes:
        what: how they were measured, in words.
        optimizer: name, with what distinguishes it from others; empty if unknown.
        phases: the phases.
        whole: the run as one phase, which is not the sum of the others, because each curve has its own form; ``None``
            if it was not measured at constant batch sizes.
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

    def best_lr(self, batch_size: int) -> Quantity:
        """Return the best learning rate of a constant run, interpolated linearly in ln lr between the optima.

        The law is not used, because it may lie on one side of all optima nearby, while steps are those at the optima.
        """
        if not self.best_lrs or not self.best_lrs[0][0] <= batch_size <= self.best_lrs[-1][0]:
            return UNKNOWN
        sizes, lrs = np.log(np.array(self.best_lrs)).T
        return Quantity(math.exp(np.interp(math.log(batch_size), sizes, lrs)))


def of_noise_scale(
    where: str, value: float, ends: Interval, progress: float, seen: float, *, draws: int, seed: int, confidence: float
) -> PhaseEstimate:
    """Return a phase of a run whose noise scale is known, as a hyperbola.

    The logarithm of the noise scale is drawn from normal distributions on either side, as wide as its interval.

    Args:
        where: where the phase ends, in words.
        value, ends: the noise scale and its interval in examples; it is drawn only if both ends are known.
        progress: steps of the run in the phase.
        seen: examples of the run in the phase.
        draws: number of draws.
        seed: seed of the draws; different for each phase.
        confidence: confidence of the interval.
    """
    low, high = ends
    drawn = np.full(0, math.nan)
    if low is not None and high is not None:
        normal = np.random.default_rng(seed).standard_normal(draws) / ndtri(0.5 + confidence / 2)
        down, up = math.log(value / low), math.log(high / value)
        drawn = value * np.exp(normal * np.where(normal < 0, down, up))
    batch_size = seen / progress
    return PhaseEstimate(
        where=where,
        critical=Quantity(value, ends),
        estimate=_hyperbola(np.asarray(value), progress, batch_size),
        resampled=_hyperbola(drawn, progress, batch_size),
    )


def _hyperbola(noise_scale: Array, steps: float, batch_size: float) -> StepsCurve:
    """Return the curve of a run with this many steps at this batch size: each made 1/(1 + B_n/B) steps of progress."""
    return StepsCurve(
        np.log(steps / (1.0 + noise_scale / batch_size)), np.log(noise_scale), np.ones_like(noise_scale), noise_scale
    )


def together(phases: tuple[PhaseEstimate, ...]) -> float:
    """Return the critical batch size of all hyperbolic phases together: E_min over S_min."""
    return float(
        sum(float(phase.estimate.min_examples) for phase in phases)
        / sum(float(phase.estimate.min_steps) for phase in phases)
    )
