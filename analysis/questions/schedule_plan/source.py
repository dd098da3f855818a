"""What a plan is made from, whatever it was measured by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from analysis.arrays import Array, Interval, Quantity
from analysis.estimate.curves import Curve
from analysis.estimate.laws.learning_rate import Law
from analysis.estimate.phases import Phase


@dataclass(frozen=True, kw_only=True)
class Source:
    """The phases of a run, and what is known beside them.

    Attributes:
        what: they were measured by, in words.
        optimizer: name, with what tells it from others; empty where nothing says it.
        hyperbolas: the same with the exponent held at 1; empty where that is not what was measured.
        alike: correlation of the errors of the phases, shape ``[phases, phases]``; ``None`` where each was measured
            apart from the others.
        measured: smallest and largest batch size that steps are known for.
        critical: critical batch size of all phases together, examples; ``None`` where it is not known.
        law: of the learning rate; ``None`` where none was measured.
    """

    what: str
    optimizer: str = ""
    phases: tuple[Phase, ...] = field(repr=False)
    hyperbolas: tuple[Phase, ...] = field(default=(), repr=False)
    alike: Array | None = field(default=None, repr=False)
    measured: tuple[float, float]
    critical: float | None
    law: Law | None = field(default=None, repr=False)
    example_unit: str = "example"
    tokens_per_example: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def correlation(self) -> Array:
        """Of the errors of the phases, shape ``[phases, phases]``."""
        return np.eye(len(self.phases)) if self.alike is None else self.alike


def of_noise_scale(
    where: str, value: float, ends: Interval, progress: float, seen: float, *, draws: int, seed: int, confidence: float
) -> Phase:
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
    return Phase(
        where=where,
        critical=Quantity(value, ends),
        estimate=_hyperbola(np.asarray(value), progress, batch_size),
        resampled=_hyperbola(drawn, progress, batch_size),
    )


def _hyperbola(noise_scale: Array, steps: float, batch_size: float) -> Curve:
    """Of a run that took so many steps at this batch size: each made 1/(1 + B_n/B) steps of progress."""
    return Curve(
        np.log(steps / (1.0 + noise_scale / batch_size)), np.log(noise_scale), np.ones_like(noise_scale), noise_scale
    )


def together(phases: tuple[Phase, ...]) -> float:
    """Critical batch size of all phases of hyperbolas together: E_min over S_min."""
    return float(
        sum(float(phase.estimate.min_examples) for phase in phases)
        / sum(float(phase.estimate.min_steps) for phase in phases)
    )
