r"""Recommend a batch size to train with, from steps to target and seconds per step.

The time to target at batch size B on n devices is :math:`T(B, n) = S(B)\, s(B, n)`, with :math:`S` the expected curve
and :math:`s` the seconds per step. One of four objectives is minimised, each over all batch sizes and over any number
of devices up to the given one:

==============  =======================================  ==========================================================
``time``        :math:`T`                                hours to target
``cost``        :math:`n T`                              device-hours; with a price per device-hour also money
``examples``    :math:`B S(B)`                           data
``priced``      :math:`(n + R) T`                        device-hours, when an hour of waiting is worth R of them
==============  =======================================  ==========================================================

The last one is the trade-off of McCandlish et al. (2018), appendix D, who minimise examples plus r times steps, with
the minimum at :math:`B = \sqrt{r B_{crit}}`. There one percent fewer steps cost :math:`r/B` percent more examples, so
that it is the lowest point of the product :math:`E S^{r/B}` of the same draws
(:class:`~analysis.estimate.definitions.least_product.LeastProduct` with the span 1).

The steps are uncertain, and so are the seconds if their table gives their error. For a given number of devices the
first two and the last choose the same batch size; they differ in the number of devices.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.comparison import together
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.estimate.scopes import read_scopes
from analysis.estimate.time_curves import TimeCurve, course, courses_of
from analysis.formatting import plural
from analysis.quantities import Array, Quantity, interval
from analysis.read.throughput import Throughput
from cbs.trial.target import Target
from extensions.recommending.plans import (
    Advice,
    Doubling,
    LocalCurves,
    Plan,
    Recommendation,
    Recommendations,
    Winner,
    Wish,
    beside,
    local_curves,
)

NEAR = 1.05  # A batch size is near the best if its objective is at most this multiple of the best

# Relative difference of the objective below which batch sizes count as equal; the smallest of them is taken
_ROUNDING = 1e-9

_FLAT = 5e-3  # ``_ROUNDING`` for examples: near perfect scaling, a slope slightly off could move their minimum anywhere


def recommend(
    path: str | os.PathLike[str],
    throughput: Throughput,
    wish: Wish,
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
) -> Recommendations:
    """Recommend the batch size of least time, cost and data, with intervals, per optimizer, and the best optimizer.

    ``path``, ``config``, ``targets`` and ``metric`` are as for :func:`analysis.analyze`, including errors.
    """
    found, notes = read_scopes(path, config, targets, metric=metric)
    curves, recommendations = local_curves(Path(path)), []
    for scope in found:
        joint = [replace(one, draws=its) for one, its in zip(scope.answers, together(scope.answers), strict=True)]
        advice = tuple(advise(answer, throughput, wish, curves) for answer in joint)
        by_objective = ([entry.plans[name] for entry in advice if entry.plans] for name in wish.objectives)
        bounds = {a.group.optimizer for a in scope.answers if any(point.at_an_edge for point in a.points)}
        measured = {a.group.optimizer: tuple(a.draws.batch_sizes[[0, -1]]) for a in joint if a.draws is not None}
        winners = tuple(winner(plans, bounds, measured) for plans in by_objective if plans)
        recommendations.append(Recommendation(**vars(scope), advice=advice, winners=winners))
    return Recommendations(
        wish=wish, recommendations=tuple(recommendations), config=config, throughput=throughput, notes=notes
    )


def advise(answer: Answer, throughput: Throughput, wish: Wish, curves: LocalCurves = MappingProxyType({})) -> Advice:
    """Return the best batch size of an optimizer for every objective; ``curves`` are those of :func:`local_curves`."""
    remarks = [] if answer.verdict is Verdict.OK else [answer.judgement]
    courses = courses_of(answer, throughput, wish.devices)
    if not courses:
        remarks.append(_why_nothing(answer, throughput, wish.devices))
    plans = {name: _plan(answer, throughput, wish, name, courses) for name in wish.objectives if courses}
    remarks += beside(answer, list(plans.values()), curves)
    return Advice(
        answer=answer,
        plans=plans,
        doubling_devices=_doubling(answer, throughput, wish.devices) if courses else None,
        remarks=tuple(remarks),
    )


def probabilities_of_best(plans: Sequence[Plan]) -> list[float]:
    """Return the probability of each plan, each of another optimizer and drawn together, to have the smallest
    objective."""
    best = np.argmin([plan.objective_draws for plan in plans], axis=0)
    return [float((best == index).mean()) for index in range(len(plans))]


def winner(plans: Sequence[Plan], bounds: Collection[str], measured: Mapping[str, tuple[float, ...]]) -> Winner:
    """Return the best of the plans of several optimizers, without a probability if another optimizer may be better than
    was measured: because it is one of ``bounds``, whose best learning rate is at the edge of its grid, or because its
    plan is at an end of its ``measured`` batch sizes while the best plan lies beyond it."""
    at = min(range(len(plans)), key=lambda index: plans[index].objective_value)
    best = plans[at]

    def cut_short(plan: Plan) -> bool:
        low, high = measured[plan.optimizer]
        return best.batch_size < low >= plan.batch_size or best.batch_size > high <= plan.batch_size

    unknown = any(
        plan.optimizer in bounds or cut_short(plan) or plan.probability_within_5_percent is None
        for plan in plans
        if plan is not best
    )
    probability = None if len(plans) < 2 or unknown else probabilities_of_best(plans)[at]
    return Winner(objective=best.objective, optimizer=best.optimizer, probability=probability)


def _plan(answer: Answer, throughput: Throughput, wish: Wish, objective: str, courses: Sequence[TimeCurve]) -> Plan:
    optimizer, confidence = answer.group.optimizer, answer.confidence
    prices = [wish.price if wish.price is not None else throughput.price(optimizer, c.devices) for c in courses]
    extra = wish.price_ratio or 0.0 if objective == "priced" else 0.0
    rates = [(c.devices + extra) * (price or 1.0) / 3600 for c, price in zip(courses, prices, strict=True)]
    weights = [
        c.batch_sizes if objective == "examples" else c.seconds * (1.0 if objective == "time" else rate)
        for c, rate in zip(courses, rates, strict=True)
    ]
    # among equals, the one on more devices is sooner
    chosen = min(reversed(range(len(courses))), key=lambda index: (courses[index].steps * weights[index]).min())
    entry, weight, price = courses[chosen], weights[chosen], prices[chosen]
    value, drawn = entry.steps * weight, entry.drawn * weight * (1.0 if objective == "examples" else entry.errors)
    at = int(np.flatnonzero(value <= value.min() * (1 + (_FLAT if objective == "examples" else _ROUNDING)))[0])
    best = drawn.argmin(axis=1)
    batch_size = int(entry.batch_sizes[at])
    steps = Quantity(value=float(entry.steps[at]), interval=interval(entry.drawn[:, at], confidence))
    seconds = Quantity(value=float(entry.time[at]), interval=interval(entry.drawn_time[:, at], confidence))
    hours = seconds.times(entry.devices / 3600)
    low, high = interval(entry.batch_sizes[best], confidence)
    beyond = _at_most_beyond(answer)
    opened = None if low in beyond else low, None if high in beyond else high
    near = float((drawn[:, at] <= NEAR * drawn.min(axis=1)).mean())
    remarks = throughput.assumption(optimizer, entry.devices), _of_plan(answer, throughput, objective, entry, at)
    return Plan(
        optimizer=optimizer,
        objective=objective,
        batch_size=batch_size,
        devices=entry.devices,
        within_5_percent=_near(entry.batch_sizes, value, at),
        best_batch_size_interval=opened,
        probability_within_5_percent=None if None in opened else near,
        steps=steps,
        examples=steps.times(batch_size),
        seconds=seconds,
        device_hours=hours,
        cost=None if price is None else hours.times(price),
        price=price,
        remarks=tuple(filter(None, remarks)),
        objective_value=float(value[at]),
        objective_draws=drawn[:, at],
    )


def _at_most_beyond(answer: Answer) -> list[float]:
    """Return the ends of the measured batch sizes beyond which others ran whose steps are only known from above."""
    assert answer.draws is not None
    first, last = answer.draws.batch_sizes[[0, -1]].tolist()
    bounded = [point.batch_size for point in answer.points if point.bounded]
    return [first] * (min(bounded, default=first) < first) + [last] * (max(bounded, default=last) > last)


def _near(batch_sizes: Array, values: Array, at: int) -> tuple[int, int]:
    """Return the range of batch sizes around ``at``, without gaps, that take at most 5 % more."""
    far = np.flatnonzero(values > NEAR * values[at])
    low = far[far < at].max(initial=-1) + 1
    high = far[far > at].min(initial=len(values)) - 1
    return int(batch_sizes[low]), int(batch_sizes[high])


def _of_plan(answer: Answer, throughput: Throughput, objective: str, entry: TimeCurve, at: int) -> str:
    """If the best candidate is the smallest or the largest, say why, and whether the best may lie beyond."""
    if at not in (0, len(entry.batch_sizes) - 1):
        return ""
    draws, size, span = answer.draws, entry.batch_sizes[at], throughput.span(answer.group.optimizer, entry.devices)
    assert draws is not None
    assert span is not None
    if size in _at_most_beyond(answer):
        return f"batch sizes beyond {size:.0f} were past the target when first evaluated: they may be better"
    if len(entry.batch_sizes) == 1:
        sharing = plural(entry.devices, "device")
        return f"{sharing} can share only batch size {size:.0f} of those measured: measure larger ones"
    end, side = (("smallest", "smaller"), ("largest", "larger"))[at > 0]
    first, last = draws.batch_sizes[[0, -1]]
    if not (first - 1 >= span[0] if at == 0 else last + 1 <= span[1]):
        return f"batch size {size:.0f} is the {end} with a step time: a {side} one may be better"
    if objective == "examples":
        return f"batch size {size:.0f} is the {end} that reached the target: a {side} one may need less data"
    further = course(answer, throughput, entry.devices, span=tuple(np.exp(draws.log_sizes[[0, -1]])))
    assert further is not None
    best = int(further.time.argmin())
    if first <= further.batch_sizes[best] <= last:
        return ""
    where = f"{further.batch_sizes[best]:.0f}" + (" or more" if best == len(further.batch_sizes) - 1 else "")
    return (
        f"the best lies outside the measured batch sizes: by the curve, not by measurement, {where} takes "
        f"{further.time[best] / entry.time[at]:.2f} of the time at {size:.0f}, the {end} that reached the target; "
        f"sweep {side} batch sizes"
    )


def _doubling(answer: Answer, throughput: Throughput, devices: int) -> Doubling | None:
    before, after = (course(answer, throughput, count) for count in (devices, 2 * devices))
    if before is None or after is None:
        return None
    first, second = (int(entry.time.argmin()) for entry in (before, after))
    factors = after.drawn_time[:, second] / before.drawn_time[:, first]
    factor = Quantity(float(after.time[second] / before.time[first]), interval(factors, answer.confidence))
    remarks = [throughput.assumption(answer.group.optimizer, 2 * devices)]
    if second == len(after.batch_sizes) - 1:
        remarks.append(f"{after.batch_sizes[-1]:.0f} is the largest batch size that could be considered")
    return Doubling(
        devices=devices,
        batch_sizes=(int(before.batch_sizes[first]), int(after.batch_sizes[second])),
        time_factor=factor,
        cost_factor=factor.times(2.0),
        remarks=tuple(filter(None, remarks)),
    )


def _why_nothing(answer: Answer, throughput: Throughput, devices: int) -> str:
    if answer.draws is None:
        return "nothing can be recommended without a curve"
    span = throughput.span(answer.group.optimizer, devices)
    if span is None:
        return f"there is no step time for {answer.group.optimizer}: add rows for it, or rows without an optimizer"
    low, high = answer.draws.batch_sizes[[0, -1]]
    return (
        f"no batch size has both: on {plural(devices, 'device')} a step time is known from {span[0]:g} to {span[1]:g}, "
        f"and the target was reached from {low:g} to {high:g}"
    )
