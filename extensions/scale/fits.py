"""Laws of the critical batch size: plain ones per optimizer, and comparisons in which all but one thing is equal."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.formatting import plain, plural, shown
from analysis.quantities import Array
from cbs.errors import ConfigError
from extensions.scale.points import AXES, ScalingPoint
from extensions.scale.power_law import Observations, PowerLaw, fit

_SAME = 1e-9  # Relative difference below which two values count as equal


FLAT = 1e-6  # Exponents below it are rounding: equal critical batch sizes

# Width of the interval of an exponent from which on a law says nothing, and how that is said
SAYS_NOTHING, NOTHING = 1.0, "nothing can be said"


@dataclass(frozen=True, kw_only=True)
class ScalingPrediction:
    """The law at one value, with the interval of a new point's critical batch size, and the factor by which the value
    lies outside the data (1 inside)."""

    x: float
    critical_batch_size: float
    interval: tuple[float, float]
    times_beyond_the_data: float

    def to_json(self) -> dict[str, Any]:
        return shown(self) | {"extrapolated": self.times_beyond_the_data > 1}


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """The law of B_crit against one quantity.

    Attributes:
        kind: ``law``: all points of an optimizer; ``set``: points that are equal in everything but ``axis``;
            ``pooled``: several sets with a common exponent.
        axis: one of :data:`extensions.scale.points.AXES`, or an option of the workload.
        workload, optimizer: names of the workload and the optimizer to which the law applies.
        held: what all points of a set have in common, in words.
        also_varies: for kind ``law``, what else differs between the points, in words.
        points: indices of the points.
        x: values of the points on the axis, shape ``[n]``.
        unit: unit of ``x``; empty for a plain number.
        doubted: number of points whose verdict is not ok, which the interval does not account for.
        remark: why there is no law, or what to know about it; otherwise empty.
    """

    kind: str
    axis: str
    workload: str
    optimizer: str
    held: str
    also_varies: str
    points: tuple[int, ...]
    x: Array
    unit: str
    fit: PowerLaw | None = field(repr=False)
    doubted: int
    remark: str
    predictions: tuple[ScalingPrediction, ...]

    @property
    def says(self) -> str:
        """What the exponent says in words: an interval of :data:`SAYS_NOTHING` or more does not tell a constant from
        proportionality."""
        if self.fit is None:
            return "no law"
        low, high = self.fit.exponent_interval
        if high - low >= SAYS_NOTHING:
            return NOTHING
        return "grows" if low > FLAT else "falls" if high < -FLAT else "no growth shown"

    @property
    def kaplan(self) -> dict[str, Any] | None:
        """Against the loss: ``B*`` and ``alpha`` of B_crit = B*/L^(1/alpha), Kaplan et al. (2020), equation 1.4."""
        if self.axis != "loss" or self.fit is None or self.kind != "law":
            return None
        alpha, *ends = (-1.0 / k if k < 0 else None for k in (self.fit.exponent, *self.fit.exponent_interval))
        return {
            "B_star": float(self.fit.constants[0]),
            "B_star_interval": list(self.fit.constant_intervals[0]),
            "alpha": alpha,
            "alpha_interval": ends,
        }

    def to_json(self) -> dict[str, Any]:
        return shown(self) | (plain(self.fit) or {}) | {"kaplan": self.kaplan}


def options(points: Iterable[ScalingPoint]) -> list[str]:
    """Return the names of all options that the workloads were given."""
    return list(dict.fromkeys(name for point in points for name in point.workload_options))


def varying(points: Sequence[ScalingPoint], names: Iterable[str]) -> list[str]:
    """Return those of ``names``, axes or options, in which the points of some optimizer differ."""
    groups = _by_optimizer(points).values()
    return [name for name in names if any(_differ(points, members, name) for members in groups)]


def _differ(points: Sequence[ScalingPoint], members: Sequence[int], name: str) -> bool:
    values = [value for value in (points[index].values.get(name) for index in members) if value is not None]
    return bool(values) and max(values) > min(values) * (1 + _SAME)


def _by_optimizer(points: Sequence[ScalingPoint]) -> dict[tuple[str, str], list[int]]:
    places: dict[tuple[str, str], list[int]] = {}
    for index, point in enumerate(points):
        places.setdefault((point.family, point.optimizer), []).append(index)
    return places


def laws(
    points: Sequence[ScalingPoint], axis: str, config: AnalysisConfig, *, at: Sequence[float] = ()
) -> list[ScalingLaw]:
    """Fit one law per workload and optimizer to all its points, with predictions ``at`` some values."""
    return [
        _law("law", axis, points, {"": [index for index in members if points[index].values.get(axis)]}, of, config, at)
        for of, members in _by_optimizer(points).items()
    ]


def comparisons(
    points: Sequence[ScalingPoint], name: str, config: AnalysisConfig, *, first: int = 0
) -> Iterator[ScalingLaw]:
    """Yield, per optimizer, the sets that are equal in everything but ``name`` (an axis or an option of the workload),
    each alone and pooled; points before ``first`` are skipped. Raise ``ConfigError`` if no point has ``name`` as a
    number."""
    if not any(point.values.get(name) for point in points):
        known = ", ".join(dict.fromkeys([*AXES, *options(points)]))
        raise ConfigError(f"--vary {name}: no point has it as a positive number; known are {known}")
    for of, members in _by_optimizer(points).items():
        sets: dict[str, list[int]] = {}
        for index in members:
            if index >= first and points[index].values.get(name):
                sets.setdefault(held(points[index], name), []).append(index)
        useful = {common: entries for common, entries in sets.items() if _differ(points, entries, name)}
        yield from (_law("set", name, points, {common: useful[common]}, of, config) for common in useful)
        if len(useful) > 1:
            yield _law("pooled", name, points, useful, of, config)


def _law(
    kind: str,
    axis: str,
    points: Sequence[ScalingPoint],
    sets: dict[str, list[int]],
    of: tuple[str, str],
    config: AnalysisConfig,
    at: Sequence[float] = (),
) -> ScalingLaw:
    """Fit the law of one workload and optimizer to ``sets`` of points, by what each has in common, with one
    exponent."""
    members = [index for entries in sets.values() for index in entries]
    own = [points[index] for index in members]
    x = np.array([point.values.get(axis) for point in own], dtype=float)
    law, remark = None, f"{plural(len(members), 'point')}, and {axis} does not vary"
    if _differ(points, members, axis):
        law, remark = _fitted(own, x, axis, [number for number, each in enumerate(sets.values()) for _ in each], config)
    return ScalingLaw(
        kind=kind,
        axis=axis,
        workload=of[0],
        optimizer=of[1],
        held=f"{len(sets)} sets" if len(sets) > 1 else next(iter(sets)),
        also_varies=_also_varies(points, members, axis) if kind == "law" else "",
        points=tuple(members),
        x=x,
        unit={"data": f"{own[0].data_unit}s", "compute": "FLOPs", "size": "parameters"}.get(axis, "") if own else "",
        fit=law,
        doubted=sum(point.verdict is not Verdict.OK for point in own),
        remark=remark,
        predictions=tuple(_prediction(law, x, value) for value in at) if law else (),
    )


def _fitted(
    points: Sequence[ScalingPoint], x: Array, axis: str, sets: Sequence[int], config: AnalysisConfig
) -> tuple[PowerLaw | None, str]:
    """Return the law and a remark; for two values, the ratio with the interval from the points' own errors."""
    uncertain = axis in ("data", "compute")
    errors = [point.log_data_draws if uncertain else 0.0 * point.log_critical_draws for point in points]
    observed = Observations(
        log_x=np.log(x),
        log_y=np.log([point.critical_batch_size for point in points]),
        log_x_draws=np.column_stack(errors),
        log_y_draws=np.column_stack([point.log_critical_draws for point in points]),
        runs=np.array([point.run for point in points]),
        sets=np.array(sets),
    )
    law = fit(observed, config)
    if law.freedom > 1:
        return law, ""
    if law.freedom == 1:
        ends = ", ".join(f"{end:.3g}" for end in law.exponent_interval_of_errors)
        return law, f"one degree of freedom for the scatter; without scatter [{ends}]"
    span = math.exp(np.ptp(observed.log_x))
    low, high = sorted(span**end for end in law.exponent_interval_of_errors)
    return None, (
        f"too few values for a law; over a factor {span:.3g} B_crit changes by a factor "
        f"{span**law.exponent:.3g} [{low:.3g}, {high:.3g}], errors of the points alone"
    )


def _prediction(law: PowerLaw, seen: Array, x: float) -> ScalingPrediction:
    low, high = law.prediction(x)
    return ScalingPrediction(
        x=x,
        critical_batch_size=float(law.at(x)),
        interval=(float(low[0]), float(high[0])),
        times_beyond_the_data=float(max(1.0, x / seen.max(), seen.min() / x)),
    )


def held(point: ScalingPoint, name: str) -> str:
    """Describe everything about a point except ``name`` and what follows from it."""
    options = [f"{key}={value}" for key, value in sorted(point.workload_options.items()) if key != name]
    if name == "parameters":
        options = []
    if point.held_data is not None:
        return ", ".join([f"data={point.held_data:g} {point.data_unit}s", *options])
    # the loss determines how much data and compute a model takes
    return ", ".join([*([] if name in ("loss", "data", "compute") else [str(point.target)]), *options])


def _also_varies(points: Sequence[ScalingPoint], members: Sequence[int], axis: str) -> str:
    names = dict.fromkeys(["loss", *options(points[index] for index in members)])
    passed_over = {axis} if axis in ("data", "compute", "loss") else {axis, "size"}
    return ", ".join(name for name in names if name not in passed_over and _differ(points, members, name))
