"""Steps to a target on the noisy quadratic of a spectrum under one assumption, with intervals over measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.arrays import OPEN, Interval, Quantity
from analysis.config import AnalysisConfig
from analysis.extensions.theory.noisy_quadratic import NoisyQuadratic, tuned
from analysis.extensions.theory.noisy_quadratic.measured import MeasuredQuadratic, measured_quadratic
from analysis.extensions.theory.prediction.mapping import Mapped
from analysis.extensions.theory.prediction.result import Variation
from analysis.extensions.theory.quadratic import fit_exactly
from analysis.phrases import number
from cbs.spectrum.record import SpectrumSample

GROUPED = 1.03
"""Curvatures within this ratio are merged, which changes steps by a thousandth."""

MUCH = 0.01
"""Fraction of a spectrum above which it is reported if it is left out."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A prediction to make from a spectrum."""

    method: Mapped
    target: float
    batch_sizes: tuple[float, ...]
    config: AnalysisConfig

    def under(self, samples: Sequence[SpectrumSample], floor: float | None = None) -> Variation:
        """Return the prediction from measurements with equal weights, without intervals."""
        point, own = samples[0].point, floor is None
        try:
            measured = measured_quadratic(samples, floor)
        except ValueError as error:
            return Variation(point=point, floor=floor, own=own, steps=(), why_not=str(error))
        if why_not := self._beyond(measured):
            return Variation(point=point, floor=measured.floor, own=own, steps=(), why_not=why_not)
        lines = _left_out(measured)
        steps = self._steps(measured.model.grouped(GROUPED), self.target - measured.floor)
        critical, least = self._fitted(steps)
        return Variation(
            point=point,
            floor=measured.floor,
            own=own,
            steps=tuple(map(Quantity, steps)),
            critical_batch_size=Quantity(critical),
            min_steps=Quantity(least),
            left_out=lines,
            why_not="" if any(steps) else f"no batch size reaches {self.target:g}: noise keeps the loss above it",
        )

    def with_interval(self, samples: Sequence[SpectrumSample]) -> Variation:
        """Return the prediction with intervals by the jackknife over the measurements."""
        whole = self.under(samples)
        if whole.why_not or len(samples) < 2:
            return whole
        rest = [self.under([*samples[:index], *samples[index + 1 :]]) for index in range(len(samples))]

        def known(of: Callable[[Variation], Quantity]) -> Quantity:
            values = [of(each).value if each.steps else None for each in rest]
            return Quantity(of(whole).value, jackknifed(of(whole).value, values, self.config.confidence))

        places = range(len(self.batch_sizes))
        return replace(
            whole,
            steps=tuple(known(lambda each, place=place: each.steps[place]) for place in places),  # type: ignore[misc]
            critical_batch_size=known(lambda each: each.critical_batch_size),
            min_steps=known(lambda each: each.min_steps),
        )

    def _beyond(self, measured: MeasuredQuadratic) -> str:
        if measured.floor >= self.target:
            return (
                f"the quadratic has its floor at {number(measured.floor)}, above the target {self.target:g}, "
                "and never reaches it"
            )
        if measured.model.initial_loss <= self.target - measured.floor:
            before = measured.model.initial_loss + measured.floor
            return f"the quadratic is at {number(before)} before training, below the target"
        return ""

    def _steps(self, model: NoisyQuadratic, excess: float) -> list[float | None]:
        method = self.method
        bests = [
            tuned(model, method.method, excess, size, method.momentum, power=method.power) for size in self.batch_sizes
        ]
        return [None if best is None else best.steps for best in bests]

    def _fitted(self, steps: Sequence[float | None]) -> tuple[float | None, float | None]:
        """Return critical batch size and ``S_min`` of the curve fitted to the steps."""
        rows = [(size, count) for size, count in zip(self.batch_sizes, steps, strict=True) if count]
        if len(rows) < 2:
            return None, None
        table = pd.DataFrame(rows, columns=["batch_size", "steps"])
        (answer,) = fit_exactly(table, replace(self.config, resamples=100)).answers
        return answer.critical.value, answer.min_steps.value


def _left_out(measured: MeasuredQuadratic) -> tuple[str, ...]:
    parts = {
        "of the gradient or of its noise lies along negative curvature": measured.negative,
        "of the gradient or of its noise lies along curvatures of 0": measured.flat,
        "of the excess loss is hidden by the noise of the gradient": measured.hidden,
    }
    return tuple(
        f"{share:.0%} {what}; it is left out".replace("%", " %") for what, share in parts.items() if share > MUCH
    )


def jackknifed(value: float | None, rest: Sequence[float | None], confidence: float) -> Interval:
    """Return the interval of a positive number from its values without each of n independent parts, by Student's t on
    the log axis (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 11)."""
    if value is None or not all(rest):
        return OPEN
    logs, count = np.log(np.array(rest, float)), len(rest)
    error = math.sqrt((count - 1) / count * float(((logs - logs.mean()) ** 2).sum()))
    reach = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error
    return value * math.exp(-reach), value * math.exp(reach)
