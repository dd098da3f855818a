"""The input of a plan, however it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from analysis.arrays import UNKNOWN, Interval, Quantity
from analysis.estimate.curves import StepsCurve
from analysis.estimate.laws.learning_rate import LearningRateLaw
from analysis.extensions.schedule_plan.phases import PhaseEstimate, steps_of


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
    scales = np.append(value, drawn)
    # at the batch size of the run each step made 1 / (1 + B_n / B) steps of progress
    least = np.log(progress / (1.0 + scales / (seen / progress)))
    curve = StepsCurve(least, np.log(scales), np.ones_like(scales))
    return PhaseEstimate(where=where, critical=Quantity(value, ends), log_steps=curve.log_steps)


def together(phases: tuple[PhaseEstimate, ...]) -> float:
    """Return the critical batch size of all hyperbolic phases together: E_min over S_min."""
    scales = np.array([phase.critical.value or 0.0 for phase in phases])
    fewest = steps_of(phases, np.ones(1))[0, :, 0] / (1.0 + scales)
    return float(fewest @ scales / fewest.sum())
