"""Requests and recommendations: objectives, a batch size for each, the gain from twice the devices, and what
``cbs local`` wrote beside them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analysis.estimate.result import Answer
from analysis.estimate.scopes import Scope
from analysis.formatting import number, plain, shown
from analysis.present.findings import Findings
from analysis.quantities import Array, Interval, Quantity
from analysis.read.throughput import Throughput
from cbs.checksum import read_json
from cbs.errors import ConfigError, ResultsError

LocalCurves = Mapping[tuple[str, str], Mapping[str, Any]]  # Local critical batch sizes by workload and optimizer

OBJECTIVES = ("time", "cost", "examples", "priced")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Conditions that a recommendation has to respect.

    Attributes:
        devices: largest number of devices.
        price: price of a device-hour in any currency; replaces that of the throughput table; ``None`` for the table's.
        price_ratio: number of device-hours that finishing an hour sooner is worth; ``None`` to leave ``priced`` out.
    """

    devices: int
    price: float | None = None
    price_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ConfigError(f"devices must be at least 1, got {self.devices}")
        if self.price is not None and not (math.isfinite(self.price) and self.price > 0):
            raise ConfigError(f"the price of a device-hour must be above 0, got {self.price:g}")
        if self.price_ratio is not None and not (math.isfinite(self.price_ratio) and self.price_ratio >= 0):
            raise ConfigError(f"the price ratio must be at least 0 device-hours per hour, got {self.price_ratio:g}")

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives that can be answered."""
        return OBJECTIVES if self.price_ratio is not None else OBJECTIVES[:-1]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The best batch size of one optimizer for one objective.

    Attributes:
        within_5_percent: smallest and largest batch size around it that take at most 5 % more on these devices.
        best_batch_size_interval: interval of the best batch size on these devices; an end beyond which batch sizes ran
            whose steps are only known from above is open.
        probability_within_5_percent: probability that the batch size takes at most 5 % more than the best on these
            devices; ``None`` with such an end.
        steps, examples: steps and examples to target.
        seconds: wall time to target, without validation.
        cost: cost in the currency of the price of a device-hour; both are ``None`` if unknown.
        objective_value: value of the objective in its own unit.
        objective_draws: draws of it, shape ``[R]``.
    """

    optimizer: str = field(repr=False)
    objective: str
    batch_size: int
    devices: int
    within_5_percent: tuple[int, int]
    best_batch_size_interval: Interval
    probability_within_5_percent: float | None
    steps: Quantity
    examples: Quantity
    seconds: Quantity
    device_hours: Quantity
    cost: Quantity | None
    price: float | None = field(repr=False)
    remarks: tuple[str, ...]
    objective_value: float = field(repr=False)
    objective_draws: Array = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Gain from using twice as many devices, each time at the batch size of least time.

    Attributes:
        devices: number of devices before; twice as many after.
        batch_sizes: batch sizes of least time, before and after.
        time_factor: time after over time before; 0.5 is ideal.
        cost_factor: device-hours after over device-hours before; 1 is ideal.
    """

    devices: int
    batch_sizes: tuple[int, int]
    time_factor: Quantity
    cost_factor: Quantity
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommendations for one optimizer.

    Attributes:
        plans: plan by objective; empty if nothing can be recommended.
        doubling_devices: gain from twice the devices; ``None`` if no step time is known for them, or nothing can be
            recommended.
        remarks: verdict, why there is no plan, and what is known of the batch size along a run.
    """

    answer: Answer = field(repr=False)
    plans: dict[str, Plan] = field(repr=False)
    doubling_devices: Doubling | None
    remarks: tuple[str, ...]

    @property
    def optimizer(self) -> str:
        return self.answer.group.optimizer

    def to_json(self) -> dict[str, Any]:
        about = {"optimizer": self.optimizer, "verdict": str(self.answer.verdict)}
        return about | shown(self) | {"plans": plain(list(self.plans.values()))}


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The best optimizer for an objective, each at its own recommended batch size; the probability that it is the best
    is ``None`` with one optimizer, if another's best learning rate is at the edge of its grid, or if
    another was not run beyond its recommended batch size, where the best lies."""

    objective: str
    optimizer: str
    probability: float | None


@dataclass(frozen=True, kw_only=True)
class Recommendation(Scope):
    """Recommendation for one sweep, workload and target: advice per optimizer, and a winner per objective (none if
    nothing can be recommended)."""

    advice: tuple[Advice, ...] = field(repr=False)
    winners: tuple[Winner, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"optimizers": plain(self.advice), "best": plain(self.winners)}


@dataclass(frozen=True, kw_only=True)
class Recommendations(Findings):
    """Result of :func:`recommend`, with one entry per sweep, workload and target."""

    wish: Wish = field(repr=False)
    recommendations: tuple[Recommendation, ...]
    throughput: Throughput = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | asdict(self.wish) | {"throughput": self.throughput.statement}


def local_curves(path: Path) -> LocalCurves:
    """Return the curves of ``cbs local`` by workload and optimizer; none where it was not called for this folder.

    Raises:
        ResultsError: if the file cannot be read.
    """
    file = path / "analysis" / "local" / "local.json"
    if not file.exists():
        return {}
    try:
        return {
            (scope["workload"], curve["optimizer"]): {
                "places": [(each["examples"], each["critical_batch_size"]) for each in curve["checkpoints"]],
                "within": f"{number(scope['tolerance'])} {scope['metric_unit']}".strip(),
                "unit": scope["example_unit"],
                "folder": file.parent,
            }
            for scope in read_json(file)["scopes"]
            for curve in scope["curves"]
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ResultsError(f"{file} is not what 'cbs local' writes: delete it, or run cbs local again") from error


def beside(answer: Answer, plans: Sequence[Plan], curves: LocalCurves) -> Iterator[str]:
    """Yield the local critical batch sizes of the optimizer, and which recommended batch sizes are above the first."""
    curve = curves.get((answer.group.workload, answer.group.optimizer))
    if curve is None:
        return
    said = ", ".join(f"{_in_words(local)} at {number(seen)}" for seen, local in curve["places"])
    yield f"local critical batch size along a run, by {curve['unit']}s seen (within {curve['within']}): {said}"
    above = {}
    for size in sorted({plan.batch_size for plan in plans}):
        if seen := [seen for seen, local in curve["places"] if size > _at_most(local)]:
            above[size] = f"{size} up to {number(seen[-1])}"
    if above:
        yield (
            f"batch sizes above it, which fall behind smaller ones at equal data: {', '.join(above.values())} "
            f"{curve['unit']}s; plan smaller ones there: cbs schedule plan with a curve-NAME.csv of {curve['folder']}"
        )


def _at_most(local: dict[str, Any]) -> float:
    """Return the local critical batch size, or its upper bound if only that is known, or infinity."""
    value, (low, high) = local["value"], local["interval"]
    return float(value or (high if high is not None and low is None else "inf"))


def _in_words(local: dict[str, Any]) -> str:
    value, (low, high) = local["value"], local["interval"]
    if value is not None:
        return number(value)
    return "unknown" if low is high is None else f"below {number(high)}" if low is None else f"above {number(low)}"
