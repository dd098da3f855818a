"""Laws of the critical batch size: plain ones per optimizer, and comparisons in which all but one thing is equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.arrays import Array
from analysis.estimate.laws.power_law import Observations, PowerLaw, fit
from analysis.questions.scaling.points import AXES, ScalingPoint
from cbs.errors import ConfigError

Ends = tuple[float | None, float | None]

_SAME = 1e-9
"""Relative; values closer than this are one value."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The law at one value.

    Attributes:
        x: the value.
        critical: of the law.
        interval: of a new point's critical batch size.
        beyond: how many times outside the data it lies; 1 inside.
    """

    x: float
    critical: float
    interval: tuple[float, float]
    beyond: float

    def to_json(self) -> dict[str, Any]:
        return {
            "x": self.x,
            "critical_batch_size": self.critical,
            "interval": list(self.interval),
            "times_beyond_the_data": self.beyond,
            "extrapolated": self.beyond > 1,
        }


@dataclass(frozen=True, kw_only=True)
class Law:
    """B_crit against one thing.

    Attributes:
        kind: ``law``: all points of an optimizer; ``set``: everything but ``axis`` is equal; ``pooled``: several sets
            with a common exponent.
        axis: one of :data:`analysis.questions.scaling.points.AXES`, or an option of the workload.
        workload, optimizer: of the points.
        held: what all points of a set have in common, in words.
        varies: for kind ``law``, what else differs between the points, in words.
        points: indices.
        x: of the points, shape ``[n]``.
        unit: of ``x``.
        fit: the law; ``None`` where there is none.
        remark: why there is none, or what to know about it; empty if nothing.
        predictions: as asked for.
    """

    kind: str
    axis: str
    workload: str
    optimizer: str
    held: str = ""
    varies: str = ""
    points: tuple[int, ...]
    x: Array = field(repr=False)
    unit: str
    fit: PowerLaw | None = field(repr=False)
    remark: str = ""
    predictions: tuple[Prediction, ...] = ()

    @property
    def kaplan(self) -> dict[str, Any] | None:
        """Against the loss: ``B*`` and ``alpha`` of B_crit = B*/L^(1/alpha), Kaplan et al. (2020), equation 1.4."""
        if self.axis != "loss" or self.fit is None or self.kind != "law":
            return None
        low, high = self.fit.exponent_interval
        return {
            "B_star": float(self.fit.constants[0]),
            "B_star_interval": list(self.fit.constant_intervals[0]),
            "alpha": -1.0 / self.fit.exponent if self.fit.exponent < 0 else None,
            "alpha_interval": [-1.0 / low if low < 0 else None, -1.0 / high if high < 0 else None],
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values without the resamples."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "axis": self.axis,
            "workload": self.workload,
            "optimizer": self.optimizer,
            "held": self.held,
            "also_varies": self.varies,
            "points": list(self.points),
            "x": [float(value) for value in self.x],
            "unit": self.unit,
            "remark": self.remark,
        }
        law = self.fit
        if law is not None:
            found |= {
                "exponent": law.exponent,
                "exponent_interval": list(law.exponent_interval),
                "exponent_interval_of_errors": list(law.exponent_interval_of_errors),
                "constants": [float(value) for value in law.constants],
                "constant_intervals": [list(ends) for ends in law.constant_intervals],
                "scatter": None if law.scatter is None else law.scatter.total,
                "freedom": law.freedom,
                "residual_rms": law.residual_rms,
            }
        return found | {"kaplan": self.kaplan, "predictions": [entry.to_json() for entry in self.predictions]}


def varying(points: Sequence[ScalingPoint]) -> list[str]:
    """The axes along which the points of some optimizer differ."""
    return [
        axis
        for axis in AXES
        if any(
            len(distinct([points[index].value(axis) for index in members])) > 1
            for members in _by_optimizer(points).values()
        )
    ]


def options_that_vary(points: Sequence[ScalingPoint]) -> list[str]:
    """Options of the workload that take several values, as :func:`option` sees them."""
    names = dict.fromkeys(name for point in points for name in point.options)
    return [
        name
        for name in names
        if any(
            len(distinct([option(points[index], name) for index in members])) > 1
            for members in _by_optimizer(points).values()
        )
    ]


def option(point: ScalingPoint, name: str) -> float | None:
    """Value of an axis or a workload option as a positive number: that of a named size is its parameters."""
    if name in AXES:
        return point.value(name)
    value = point.options.get(name)
    if name == "size" and isinstance(value, str):
        return point.value("parameters")
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None else None


def distinct(values: Sequence[float | None]) -> list[float]:
    """Known values, increasing, each once."""
    found: list[float] = []
    for value in sorted(value for value in values if value is not None):
        if not found or value > found[-1] * (1 + _SAME):
            found.append(value)
    return found


def laws(points: Sequence[ScalingPoint], axis: str, *, at: Sequence[float], confidence: float, seed: int) -> list[Law]:
    """One law per workload and optimizer over all its points."""
    found = []
    for (workload, optimizer), members in _by_optimizer(points).items():
        usable = [index for index in members if points[index].value(axis) is not None]
        law = _law("law", axis, points, [usable], workload, optimizer, confidence=confidence, seed=seed)
        found.append(_with_predictions(law, at, varies=_also_varies(points, usable, axis)))
    return found


def comparisons(
    points: Sequence[ScalingPoint], name: str, *, first: int = 0, confidence: float, seed: int
) -> list[Law]:
    """Per optimizer the sets in which everything but ``name`` is equal, each alone and pooled.

    Args:
        points: all points.
        name: an axis or an option of the workload.
        first: the first point to use; those before it are passed over.
        confidence: of the intervals.
        seed: of the draws.

    Raises:
        ConfigError: if ``name`` is no number in the points.
    """
    if not any(option(point, name) is not None for point in points):
        known = dict.fromkeys([*AXES, *(key for point in points for key in point.options)])
        raise ConfigError(f"--vary {name}: no point has it as a positive number; known are {', '.join(known)}")
    found = []
    for (workload, optimizer), members in _by_optimizer(points).items():
        sets: dict[str, list[int]] = {}
        for index in members:
            if index >= first and option(points[index], name) is not None:
                sets.setdefault(held(points[index], name), []).append(index)
        useful = {
            common: entries
            for common, entries in sets.items()
            if len(distinct([option(points[index], name) for index in entries])) > 1
        }
        for common, entries in useful.items():
            found.append(
                _law("set", name, points, [entries], workload, optimizer, held=common, confidence=confidence, seed=seed)
            )
        if len(useful) > 1:
            pool = list(useful.values())
            found.append(
                _law(
                    "pooled", name, points, pool, workload, optimizer,
                    held=f"{len(pool)} sets", confidence=confidence, seed=seed,
                )
            )  # fmt: skip
    return found


def _law(
    kind: str,
    axis: str,
    points: Sequence[ScalingPoint],
    sets: Sequence[Sequence[int]],
    workload: str,
    optimizer: str,
    *,
    held: str = "",
    confidence: float,
    seed: int,
) -> Law:
    members = [index for entries in sets for index in entries]
    x = np.array([option(points[index], axis) for index in members], dtype=float)
    values = distinct(x.tolist())
    found, remark = None, ""
    if len(values) < 2:
        remark = f"{len(members)} point{'s' * (len(members) != 1)}, and {axis} does not vary"
    else:
        observed = Observations(
            log_x=np.log(x),
            log_y=np.log([points[index].critical for index in members]),
            log_x_resamples=np.column_stack([_log_x(points[index], axis) for index in members]),
            log_y_resamples=np.column_stack([points[index].log_critical_resamples for index in members]),
            runs=np.array([points[index].run for index in members]),
            sets=np.array([number for number, entries in enumerate(sets) for _ in entries]),
        )
        found = fit(observed, confidence=confidence, seed=seed)
        if found.freedom < 1:
            found, remark = None, _ratio(observed, confidence, seed)
        elif found.freedom == 1:
            errors = ", ".join(f"{end:.3g}" for end in found.exponent_interval_of_errors)
            remark = f"one degree of freedom for the scatter; without scatter [{errors}]"
    return Law(
        kind=kind,
        axis=axis,
        workload=workload,
        optimizer=optimizer,
        held=held,
        points=tuple(members),
        x=x,
        unit=unit(points[members[0]], axis) if members else "",
        fit=found,
        remark=remark,
    )


def _ratio(observed: Observations, confidence: float, seed: int) -> str:
    """What two values of ``x`` say: no law, the ratio with the interval of the points' own errors."""
    low, high = int(observed.log_x.argmin()), int(observed.log_x.argmax())
    law = fit(observed, confidence=confidence, seed=seed)
    span = float(observed.log_x[high] - observed.log_x[low])
    ends = sorted(math.exp(end * span) for end in law.exponent_interval_of_errors)
    return (
        f"too few values for a law; over a factor {math.exp(span):.3g} B_crit changes by a factor "
        f"{math.exp(law.exponent * span):.3g} [{ends[0]:.3g}, {ends[1]:.3g}], errors of the points alone"
    )


def _with_predictions(law: Law, at: Sequence[float], *, varies: str) -> Law:
    predictions = []
    for x in at if law.fit else ():
        assert law.fit is not None
        low, high = law.fit.prediction(x)
        predictions.append(
            Prediction(
                x=x,
                critical=float(law.fit.at(x)),
                interval=(float(low[0]), float(high[0])),
                beyond=float(max(1.0, x / law.x.max(), law.x.min() / x)),
            )
        )
    return replace(law, predictions=tuple(predictions), varies=varies)


def _log_x(point: ScalingPoint, axis: str) -> Array:
    if axis in AXES:
        return point.log_resamples(axis)
    return np.zeros_like(point.log_critical_resamples)


def unit(point: ScalingPoint, axis: str) -> str:
    """Of an axis or option; empty where it is a plain number."""
    if axis == "data":
        return f"{point.data_unit}s"
    return {"compute": "FLOPs", "parameters": "", "loss": "", "size": "parameters"}.get(axis, "")


def _by_optimizer(points: Sequence[ScalingPoint]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for index, point in enumerate(points):
        found.setdefault((point.family, point.optimizer), []).append(index)
    return found


def held(point: ScalingPoint, name: str) -> str:
    """Everything about a point but ``name`` and what it brings about."""
    options = [f"{key}={value}" for key, value in sorted(point.options.items()) if key != name]
    if name == "parameters":
        options = []
    if point.held_data is not None:
        return ", ".join([f"data={point.held_data:g} {point.data_unit}s", *options])
    # the loss sets how much data and compute a model takes
    return ", ".join([*([] if name in ("loss", "data", "compute") else [str(point.target)]), *options])


def _also_varies(points: Sequence[ScalingPoint], members: Sequence[int], axis: str) -> str:
    names = ["loss", *options_that_vary([points[index] for index in members])]
    if axis not in ("data", "compute", "loss"):
        names = [name for name in names if name != "size"]
    return ", ".join(
        name
        for name in dict.fromkeys(names)
        if name != axis and len(distinct([option(points[index], name) for index in members])) > 1
    )
