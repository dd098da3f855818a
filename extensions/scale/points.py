"""Critical batch sizes of many models, optimizers and targets, as points of a law."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.estimate.comparison import critical_sizes, together
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.draws import Draws
from analysis.estimate.result import Answer
from analysis.formatting import flat
from analysis.quantities import Array, Interval, interval, percentiles
from cbs.trial.target import Target

AXES = ("data", "parameters", "loss", "compute")
# Forward and backward pass of a dense model: C = 6 N D (Kaplan et al. 2020, section 2.1).
FLOPS_PER_PARAMETER_AND_TOKEN = 6


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One workload variant, optimizer and target with a critical batch size.

    Attributes:
        family: name of the workload.
        workload: name of the workload, with the options that distinguish it from others.
        workload_options: every option that the workload was given, nested ones by dotted name.
        optimizer: name of the optimizer, with the settings that distinguish it from others.
        run: index of the group of trials behind the point, the same for all targets of these trials.
        unit: unit of batch sizes: ``sequence``, ``token``, ...
        parameters: number of model parameters, if known.
        data: examples to the target in ``data_unit``; ``None`` if the measured batch sizes do not show them.
        data_unit: unit of ``data``: ``token``, or the example.
        compute: 6 N D in FLOPs; ``None`` without N or tokens.
        held_data: for a point interpolated between targets, the data at which it is interpolated.
        verdict: verdict on the answer behind the point; for an interpolated point, the worse of two.
        log_critical_draws: draws of ln critical batch size, shape ``[R]``.
        log_data_draws: draws of ln data, shape ``[R]``; empty without ``data``.
    """

    sweep: str
    family: str = field(repr=False)
    workload: str
    workload_options: dict[str, Any]
    optimizer: str
    target: Target
    run: int = field(repr=False)
    critical_batch_size: float
    interval: Interval
    unit: str
    parameters: int | None
    data: float | None
    data_interval: Interval
    data_unit: str
    compute: float | None
    held_data: float | None = None
    verdict: Verdict = Verdict.OK
    log_critical_draws: Array = field(repr=False)
    log_data_draws: Array = field(repr=False)

    @property
    def values(self) -> dict[str, float]:
        """Axes and workload options that are positive numbers; a named size counts as its number of parameters."""
        by_axis = {**self.workload_options, **{name: getattr(self, name) for name in AXES if name != "loss"}}
        by_axis["loss"] = self.target.value if self.target.direction == "below" else None
        if isinstance(by_axis.get("size"), str):
            by_axis["size"] = self.parameters
        numbers = {
            name: value for name, value in by_axis.items() if isinstance(value, int | float) and value is not True
        }
        return {name: float(value) for name, value in numbers.items() if value > 0}


def in_tokens(answers: Sequence[Answer]) -> bool:
    """Return whether batch sizes are counted in tokens, because examples differ in length."""
    lengths = {answer.group.tokens_per_example for answer in answers}
    return len(lengths) > 1 and None not in lengths


# What the points of one law must have in common, in words
_ALIKE = {
    "metric_unit": "units of the metric",
    "data_hash": "data",
    "example_unit": "units of an example",
    "tokens_per_example": "tokens in an example",
}


def unlike(pooled_answers: Sequence[Answer]) -> Iterator[str]:
    """Yield one line for everything that differs between models of one workload although it should not; examples that
    differ in length are allowed if batch sizes are in tokens."""
    for family, answers in itertools.groupby(sorted(pooled_answers, key=_family), _family):
        groups = [answer.group for answer in answers]
        for name, words in _ALIKE.items():
            values = dict.fromkeys(getattr(group, name) for group in groups)
            if len(values) > 1 and not (name == "tokens_per_example" and in_tokens(pooled_answers)):
                shown = ", ".join("unknown" if value is None else str(value) for value in values)
                yield f"{family}: different {words} ({shown}): a target and a batch size mean different things"


def _family(answer: Answer) -> str:
    return answer.group.workload.split("(")[0]


def points_of(answers: Sequence[Answer], data_at_batch: float | None) -> tuple[list[ScalingPoint], list[str]]:
    """Return every critical batch size with an interval, one line for every reason why others have none, and one for
    every verdict against those that have.

    The data are the examples to target at ``data_at_batch`` examples, ``None`` for the critical batch size.
    """
    whys = [(answer, why_left_out(answer)) for answer in answers]
    kept = [answer for answer, why in whys if not why]
    runs = {number: index for index, number in enumerate(dict.fromkeys(id(answer.group) for answer in answers))}
    tokens = in_tokens(answers)
    several = len({(answer.group.workload, answer.group.optimizer) for answer in answers}) > 1
    lines = []
    for reason in dict.fromkeys(why for _, why in whys if why):
        named = (_named(answer, several) for answer, why in whys if why == reason)
        lines.append(f"left out {'; '.join(named)}: {reason}")
    for verdict in (each for each in Verdict if each is not Verdict.OK):
        doubted = sum(answer.verdict is verdict for answer in kept)
        lines += [f"{verdict}: {doubted} of {len(kept)} points, see points.csv"] if doubted else []
    points = []
    for answer, draws, critical in zip(kept, together(kept), critical_sizes(kept), strict=True):
        assert draws is not None
        points.append(_point(answer, draws, critical, runs[id(answer.group)], tokens, data_at_batch))
    return points, lines


def _named(answer: Answer, several: bool) -> str:
    group = answer.group
    whose = f"{group.sweep}, {group.workload}, {group.optimizer}" if several else group.sweep
    return f"{whose} at {answer.target.value:g}"


def why_left_out(answer: Answer) -> str:
    """Return why there is no point; empty if there is one."""
    if answer.draws is None or answer.critical.value is None:
        return f"there is no critical batch size ({answer.verdict})"
    return f"the interval is open ({answer.verdict})" if None in answer.critical.interval else ""


def _point(
    answer: Answer, draws: Draws, sizes: Array, run: int, in_tokens: bool, data_at_batch: float | None
) -> ScalingPoint:
    group, tokens = answer.group, answer.group.tokens_per_example or 1
    factor = tokens if in_tokens else 1
    critical, log_sizes = answer.critical.times(factor), _logs(sizes)
    assert critical.value is not None
    if data_at_batch is None:
        data = answer.examples_at_critical.value
        # every draw has a critical batch size of its own
        steps = (np.interp(size, draws.log_sizes, curve) for size, curve in zip(log_sizes, draws.curves, strict=True))
        log_data = log_sizes + np.fromiter(steps, float)
    else:
        batch = np.array([data_at_batch])
        data = data_at_batch * math.exp(draws.estimate(batch)[0])
        log_data = np.log(batch) + draws.drawn(batch)[:, 0]
    data, log_data = None if data is None else data * tokens, log_data + math.log(tokens)
    compute = None
    if group.parameters and data and group.tokens_per_example:
        compute = FLOPS_PER_PARAMETER_AND_TOKEN * group.parameters * data
    return ScalingPoint(
        sweep=group.sweep,
        family=_family(answer),
        workload=group.workload,
        workload_options={
            name: value if isinstance(value, int | float | str | bool | None) else json.dumps(value)
            for name, value in flat(group.workload_options)
            if value != {}
        },
        optimizer=group.optimizer,
        target=answer.target,
        run=run,
        critical_batch_size=critical.value,
        interval=critical.interval,
        unit="token" if in_tokens else group.example_unit,
        parameters=group.parameters,
        data=data,
        data_interval=(None, None) if data is None else interval(np.exp(log_data), answer.confidence),
        data_unit="token" if group.tokens_per_example else group.example_unit,
        compute=compute,
        verdict=answer.verdict,
        log_critical_draws=log_sizes + math.log(factor),
        log_data_draws=np.empty(0) if data is None else log_data,
    )


def at_data(points: Sequence[ScalingPoint], data: float, confidence: float) -> tuple[list[ScalingPoint], list[str]]:
    """Return one point per curve at the same data instead of the same loss, and one line per curve that has none.

    The critical batch size is interpolated, log against log, between the two targets whose data lie around ``data``, on
    every draw.
    """
    scaling_points, left_out = [], []
    for run in dict.fromkeys(point.run for point in points):
        own = [point for point in points if point.run == run]
        curve = sorted((point.data, index) for index, point in enumerate(own) if point.data is not None)
        around = [pair for pair in itertools.pairwise(curve) if pair[0][0] <= data <= pair[1][0]]
        if not around:
            seen = f"data {curve[0][0]:.3g} to {curve[-1][0]:.3g} {own[0].data_unit}s" if curve else "no data"
            name = f"{own[0].sweep}, {own[0].workload}, {own[0].optimizer}"
            left_out.append(f"{name}: no point at data {data:g}, as its targets take {seen}")
            continue
        (first, place), (second, other) = around[0]
        below, above = own[place], own[other]
        # position of the data between the two, at most half the distance outside: the estimate, then the draws
        start = np.append(np.log(first), below.log_data_draws)
        distance = np.maximum(np.append(np.log(second), above.log_data_draws) - start, 1e-9)
        share = np.clip((np.log(data) - start) / distance, -0.5, 1.5)
        low, high = (np.append(math.log(end.critical_batch_size), end.log_critical_draws) for end in (below, above))
        critical = low + share * (high - low)
        ends = np.exp(percentiles(critical[1:], confidence))
        loss = below.target.value + float(share[0]) * (above.target.value - below.target.value)
        scaling_points.append(
            replace(
                below,
                target=replace(below.target, value=loss),
                critical_batch_size=math.exp(critical[0]),
                interval=(float(ends[0]), float(ends[1])),
                data=data,
                data_interval=(data, data),
                compute=None if below.compute is None else below.compute * data / first,
                held_data=data,
                verdict=Verdict.gravest((below.verdict, above.verdict)),
                log_critical_draws=critical[1:],
                log_data_draws=np.full(len(critical) - 1, np.log(data)),
            )
        )
    return scaling_points, left_out


def _logs(values: Array) -> Array:
    """Return natural logarithms; 0 and infinity, from the few draws beyond a closed interval, count as the
    outermost."""
    usable = np.isfinite(values) & (values > 0)
    inside = values[usable]
    return np.asarray(
        np.log(np.clip(np.where(np.isnan(values), np.median(inside), values), inside.min(), inside.max()))
    )
