"""The input of a plan, however it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from analysis.config import AnalysisConfig
from analysis.estimate.learning_rate_law import LearningRateLaw
from analysis.estimate.prior import StepsCurve
from analysis.quantities import UNKNOWN, Interval, Quantity
from extensions.schedules.plan.phases import PhaseEstimate, steps_of


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
    for place, (where, value, (low, high), steps, seen) in enumerate(stretches):
        drawn = np.full(0, math.nan)
        if low is not None and high is not None:
            normal = np.random.default_rng(config.seed + place).standard_normal(config.resamples) / wide
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
