r"""Which batch size to train with, from steps to target and seconds per step.

The time to target at batch size B on n devices is :math:`T(B, n) = S(B)\, s(B, n)`, with :math:`S` the fitted curve and
:math:`s` the seconds of a step. Four things may be made as small as can be, each over all batch sizes and over any
number of devices up to the given one:

==============  =======================================  ==========================================================
``time``        :math:`T`                                hours to target
``cost``        :math:`n T`                              device-hours; with a price per device-hour also money
``examples``    :math:`B S(B)`                           data
``priced``      :math:`(n + R) T`                        device-hours, when an hour of waiting is worth R of them
==============  =======================================  ==========================================================

The last is the exchange of McCandlish et al. (2018), appendix D, who make examples plus r times steps as small as can
be, at :math:`B = \sqrt{r B_{crit}}`.

The steps are uncertain, the seconds are taken as they are given. For given devices the first two and the last choose
the same batch size; they differ in the devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.arrays import Array
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.fitting import Fit, interval
from analysis.estimate.quantity import Quantity
from analysis.estimate.result import Answer
from analysis.phrases import plural
from analysis.questions.comparison import shuffled
from analysis.questions.courses import Course, course, courses_of
from analysis.questions.recommendation.plans import Advice, Doubling, Plan, Wish
from analysis.read.throughput import Throughput

NEAR = 1.05
"""A batch size is near the best when it takes at most this multiple of the best."""

_ROUNDING = 1e-9
"""Of batch sizes that differ by less than this, in the objective, the smallest is taken."""

_FLAT = 5e-3
"""Likewise in examples: near perfect scaling an exponent that is off 1 by a hair moves their minimum anywhere."""


def advise(answer: Answer, throughput: Throughput, wish: Wish) -> Advice:
    """The best batch size of an optimizer for every objective."""
    remarks = [] if answer.verdict is Verdict.OK else [f"{answer.verdict}: {answer.advice}"]
    courses = [] if answer.fit is None else courses_of(answer.fit, throughput, answer.group.optimizer, wish.devices)
    if not courses:
        remarks.append(_why_nothing(answer, throughput, wish.devices))
        return Advice(answer=answer, plans={}, doubling=None, remarks=tuple(remarks))
    plans = {objective: _plan(answer, throughput, wish, objective, courses) for objective in wish.objectives}
    doubling = _doubling(answer, throughput, wish.devices)
    return Advice(answer=answer, plans=plans, doubling=doubling, remarks=tuple(remarks))


def probabilities_of_best(plans: Sequence[Plan], *, seed: int) -> list[float] | None:
    """Probability of each plan, of as many optimizers, to have the smallest objective; ``None`` where one has no
    resamples. The optimizers are independent."""
    if not plans or not all(len(plan.objective_resamples) for plan in plans):
        return None
    table = [shuffled(plan.objective_resamples, seed=seed, turn=turn) for turn, plan in enumerate(plans)]
    best = np.argmin(table, axis=0)
    return [float((best == index).mean()) for index in range(len(plans))]


def _weights(objective: str, entry: Course, wish: Wish, price: float | None) -> Array:
    """What a step costs in the objective, shape ``[K]``."""
    if objective == "examples":
        return entry.batch_sizes
    if objective == "time":
        return entry.seconds
    extra = wish.price_ratio if objective == "priced" and wish.price_ratio is not None else 0.0
    return entry.seconds * (entry.devices + extra) * (1.0 if price is None else price) / 3600


def _plan(answer: Answer, throughput: Throughput, wish: Wish, objective: str, courses: Sequence[Course]) -> Plan:
    optimizer, confidence, fit = answer.group.optimizer, answer.confidence, answer.fit
    assert fit is not None
    prices = [wish.price if wish.price is not None else throughput.price(optimizer, c.devices) for c in courses]
    weights = [_weights(objective, c, wish, price) for c, price in zip(courses, prices, strict=True)]
    values = [c.steps * weight for c, weight in zip(courses, weights, strict=True)]
    # of equals the one on more devices, which is the sooner
    chosen = min(reversed(range(len(courses))), key=lambda index: values[index].min())
    entry, weight, value = courses[chosen], weights[chosen], values[chosen]
    at = int(np.flatnonzero(value <= value.min() * (1 + (_FLAT if objective == "examples" else _ROUNDING)))[0])
    resampled = entry.resampled * weight
    best = resampled.argmin(axis=1)
    shares = resampled[:, at] <= NEAR * resampled[np.arange(len(best)), best]
    steps = Quantity(value=float(entry.steps[at]), interval=interval(entry.resampled[:, at], confidence))
    return Plan(
        optimizer=optimizer,
        objective=objective,
        batch_size=int(entry.batch_sizes[at]),
        devices=entry.devices,
        within_5_percent=_near(entry.batch_sizes, value, at),
        best_batch_size_interval=interval(entry.batch_sizes[best], confidence),
        probability_within_5_percent=float(shares.mean()) if len(shares) else None,
        steps=steps,
        seconds=steps.times(float(entry.seconds[at])),
        price=prices[chosen],
        remarks=tuple(_plan_remarks(fit, throughput, optimizer, objective, entry, at)),
        objective_value=float(value[at]),
        objective_resamples=resampled[:, at],
    )


def _near(batch_sizes: Array, values: Array, at: int) -> tuple[int, int]:
    """The batch sizes around ``at`` without a gap that take at most 5 % more."""
    far = np.flatnonzero(values > NEAR * values[at])
    low = far[far < at].max(initial=-1) + 1
    high = far[far > at].min(initial=len(values)) - 1
    return int(batch_sizes[low]), int(batch_sizes[high])


def _plan_remarks(
    fit: Fit, throughput: Throughput, optimizer: str, objective: str, entry: Course, at: int
) -> list[str]:
    found = [throughput.assumption(optimizer, entry.devices)]
    if objective == "examples":
        found.append(
            "up to an exponent of 1 the smallest batch size always needs the fewest examples; "
            f"here it is {float(fit.estimate.exponent):.3g}"
        )
        return [text for text in found if text]
    if at in (0, len(entry.batch_sizes) - 1):
        found.append(_edge(fit, throughput, optimizer, entry, at))
    return [text for text in found if text]


def _edge(fit: Fit, throughput: Throughput, optimizer: str, entry: Course, at: int) -> str:
    """Why the best candidate is the smallest or the largest, and whether the best lies beyond it."""
    size, span = entry.batch_sizes[at], throughput.span(optimizer, entry.devices)
    assert span is not None
    end, side = (("smallest", "smaller"), ("largest", "larger"))[at > 0]
    covered = fit.batch_sizes[0 if at == 0 else -1]
    beyond = covered - 1 >= span[0] if at == 0 else covered + 1 <= span[1]
    if not beyond:
        return f"batch size {size:.0f} is the {end} with a step time: a {side} one may be better"
    wide = (span[0], min(span[1], fit.batch_sizes[-1] * 1e3))
    further = course(fit, throughput, optimizer, entry.devices, span=wide)
    assert further is not None
    best = int((further.steps * further.seconds).argmin())
    if fit.batch_sizes[0] <= further.batch_sizes[best] <= fit.batch_sizes[-1]:
        return ""
    ratio = (further.steps * further.seconds)[best] / (entry.steps * entry.seconds)[at]
    where = f"{further.batch_sizes[best]:.0f}" + (" or more" if best == len(further.batch_sizes) - 1 else "")
    return (
        f"the best lies outside the measured batch sizes: by the fit, not by measurement, {where} takes {ratio:.2f} of "
        f"the time at {size:.0f}, the {end} that reached the target; sweep {side} batch sizes"
    )


def _doubling(answer: Answer, throughput: Throughput, devices: int) -> Doubling | None:
    fit, optimizer = answer.fit, answer.group.optimizer
    assert fit is not None
    before, after = (course(fit, throughput, optimizer, count) for count in (devices, 2 * devices))
    if before is None or after is None:
        return None
    places = [int((entry.steps * entry.seconds).argmin()) for entry in (before, after)]
    value, values = (
        steps[1] * after.seconds[places[1]] / (steps[0] * before.seconds[places[0]])
        for steps in (
            (before.steps[places[0]], after.steps[places[1]]),
            (before.resampled[:, places[0]], after.resampled[:, places[1]]),
        )
    )
    factor = Quantity(value=float(value), interval=interval(values, answer.confidence))
    remarks = [throughput.assumption(optimizer, 2 * devices)]
    if places[1] == len(after.batch_sizes) - 1:
        remarks.append(f"{after.batch_sizes[-1]:.0f} is the largest batch size that could be looked at")
    return Doubling(
        devices=devices,
        batch_sizes=(int(before.batch_sizes[places[0]]), int(after.batch_sizes[places[1]])),
        time_factor=factor,
        cost_factor=factor.times(2.0),
        remarks=tuple(text for text in remarks if text),
    )


def _why_nothing(answer: Answer, throughput: Throughput, devices: int) -> str:
    if answer.fit is None:
        return "nothing can be recommended without a fit"
    span = throughput.span(answer.group.optimizer, devices)
    if span is None:
        return f"there is no step time for {answer.group.optimizer}: add rows for it, or rows without an optimizer"
    low, high = answer.fit.batch_sizes[0], answer.fit.batch_sizes[-1]
    return (
        f"no batch size has both: on {plural(devices, 'device')} a step time is known from {span[0]:g} to {span[1]:g}, "
        f"and the target was reached from {low:g} to {high:g}"
    )
