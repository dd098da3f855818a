"""Predictions for a sweep compared with measurements, and whether they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from analysis.arrays import UNKNOWN, Quantity
from analysis.estimate.findings import Findings
from analysis.estimate.result import Answer
from analysis.extensions.theory.prediction.mapping import Mapped
from analysis.phrases import number, with_interval
from analysis.plain import plain
from cbs.spectrum.record import Spectrum

FACTOR = 4.0
"""A ratio whose interval is wider than this factor is inconclusive."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """The prediction under one assumption.

    Attributes:
        point: point of the spectrum: ``start`` or ``target``.
        floor: metric at the minimum of the quadratic; ``None`` if there is no quadratic.
        own: whether the floor is that of the quadratic itself rather than an assumed one.
        steps: steps to the target at every batch size; ``None`` if it is not reached.
        critical_batch_size: critical batch size of the curve fitted to ``steps``, in examples.
        min_steps: ``S_min`` of that curve.
        why_not: why there is no prediction; empty if there is one.
        left_out: what the quadratic leaves out of the spectrum, one line each; empty if that is little.
    """

    point: str
    floor: float | None
    own: bool
    steps: tuple[Quantity, ...]
    critical_batch_size: Quantity = UNKNOWN
    min_steps: Quantity = UNKNOWN
    why_not: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The assumption in words."""
        if self.floor is None:
            return f"spectrum at the {self.point}"
        return f"spectrum at the {self.point}, {'its own ' if self.own else ''}floor {number(self.floor)}"

    @property
    def label(self) -> str:
        """The assumption in a short form."""
        return f"{self.point}, {'own floor' if self.own else f'floor {number(self.floor)}'}"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One optimizer at one target.

    Attributes:
        answer: the measured answer.
        mapped: the method on the quadratic.
        batch_sizes: batch sizes of the prediction.
        main: the prediction, with intervals over the replicates of the spectrum.
        others: predictions under other assumptions, without intervals.
        critical_ratio: predicted over measured critical batch size.
        min_steps_ratio: predicted over measured ``S_min``.
    """

    answer: Answer = field(repr=False)
    mapped: Mapped
    batch_sizes: tuple[float, ...]
    main: Variation
    others: tuple[Variation, ...]

    @property
    def critical_ratio(self) -> Quantity:
        return self.main.critical_batch_size.over(self.answer.critical)

    @property
    def min_steps_ratio(self) -> Quantity:
        return self.main.min_steps.over(self.answer.min_steps)

    @property
    def says(self) -> str:
        """Statement of whether the prediction holds."""
        if self.main.why_not:
            return f"no prediction: {self.main.why_not}"
        parts = [
            _verdict("B_crit", self.main.critical_batch_size, self.answer.critical, self.critical_ratio),
            _verdict("S_min", self.main.min_steps, self.answer.min_steps, self.min_steps_ratio),
        ]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        group, critical = self.answer.group, self.answer.critical
        return {
            **group.whose,
            "example_unit": group.example_unit,
            "target": self.answer.target.to_json(),
            "method": plain(self.mapped),
            "batch_sizes": list(self.batch_sizes),
            "measured": {
                **Quantity(critical.value, critical.interval).named("critical_batch_size"),
                **self.answer.min_steps.named("min_steps"),
            },
            "predicted": plain(self.main),
            **self.critical_ratio.named("critical_batch_size_ratio"),
            **self.min_steps_ratio.named("min_steps_ratio"),
            "other_assumptions": plain(self.others),
            "says": self.says,
        }


@dataclass(frozen=True, kw_only=True)
class Predictions(Findings):
    """Result of :func:`predict` from a model's spectrum, with one entry per optimizer and target."""

    spectrum: Spectrum = field(repr=False)
    entries: tuple[Prediction, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        about = {name: getattr(self.spectrum, name) for name in ("curvature", "nodes", "parameters", "trial")}
        return super().to_json() | {"spectrum": about, "predictions": plain(self.entries)}


def _verdict(name: str, predicted: Quantity, measured: Quantity, ratio: Quantity) -> str:
    (low, high), says = ratio.interval, f"{name} {with_interval(predicted.value, predicted.interval)} predicted"
    if predicted.value is None:
        return f"the prediction of {name} lies beyond the batch sizes"
    if measured.value is None:
        return f"{says}, and the sweep does not determine it"
    says += f", {with_interval(measured.value, measured.interval)} measured"
    if low is None or high is None:
        return f"{says}: without both intervals nothing can be said of {name}"
    times = f"{with_interval(ratio.value, ratio.interval)} times the measured one"
    if not low <= 1.0 <= high:
        return f"{says}: the prediction of {name} does not hold, it is {times}"
    if high / low > FACTOR:
        return f"{says}: the prediction of {name} is not contradicted, but it is {times}, which says little"
    return f"{says}: the prediction of {name} holds, it is {times}"
