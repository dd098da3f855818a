"""What a plan is made from, whatever it was measured by."""

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
    """The phases of a run, and what is known beside them.

    Attributes:
        what: they were measured by, in words.
        optimizer: name, with what tells it from others; empty where nothing says it.
        whole: the run as one phase, which is no sum of the others: each curve has its own form; ``None`` where it was
            not measured at constant batch sizes.
        measured: smallest and largest batch size that steps are known for.
        critical: critical batch size of all phases together, examples; ``None`` where it is not known.
        grain: what batch sizes are multiples of, so that they can be run as those that were measured.
        law: of the learning rate; ``None`` where none was measured.
        best_lrs: batch sizes and the best learning rate at each, between those that were tried; none at an edge.
        highest_lrs: batch sizes and the largest learning rate that reached the target at each, likewise.
        decays: whether the learning rate of the runs falls; ``None`` where nothing says it.
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
        """Of constant runs: between the optima on straight lines in ln lr, not by a law that may miss all of them on
        one side, because steps are those at the optima."""
        if not self.best_lrs or not self.best_lrs[0][0] <= batch_size <= self.best_lrs[-1][0]:
            return UNKNOWN
        sizes, lrs = np.log(np.array(self.best_lrs)).T
        return Quantity(math.exp(np.interp(math.log(batch_size), sizes, lrs)))


def of_noise_scale(
    where: str, value: float, ends: Interval, progress: float, seen: float, *, draws: int, seed: int, confidence: float
) -> PhaseEstimate:
    """A phase of a run whose noise scale is known: a hyperbola.

    The logarithm of the noise scale is drawn as normal on either side, as wide as its interval says.

    Args:
        value, ends: the noise scale and its interval, examples; drawn only where both ends are known.
        progress: steps of the run in the phase.
        seen: examples of the run in the phase.
        seed: of the draws; another one for each phase.
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
    """Of a run that took so many steps at this batch size: each made 1/(1 + B_n/B) steps of progress."""
    return StepsCurve(
        np.log(steps / (1.0 + noise_scale / batch_size)), np.log(noise_scale), np.ones_like(noise_scale), noise_scale
    )


def together(phases: tuple[PhaseEstimate, ...]) -> float:
    """Critical batch size of all phases of hyperbolas together: E_min over S_min."""
    return float(
        sum(float(phase.estimate.min_examples) for phase in phases)
        / sum(float(phase.estimate.min_steps) for phase in phases)
    )
