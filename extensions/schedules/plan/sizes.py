"""Which batch sizes a plan may use, the cost by which they are compared, and the batch size of every phase."""

from __future__ import annotations

import math

import numpy as np

from analysis.estimate.time_curves import candidates
from analysis.formatting import number, plural
from analysis.quantities import Array
from analysis.read.cells import LARGEST
from cbs.errors import ConfigError
from extensions.schedules.plan.phases import PhaseSource, doubled, lower_ends, steps_of
from extensions.schedules.plan.plans import PlanRequest

_OPEN = 4.0
"""If batch sizes have no measured end, they extend to this multiple of the largest critical batch size, or of the
price."""


def price_of(source: PhaseSource, ask: PlanRequest) -> tuple[float | None, str]:
    """Return the number of examples that a step is worth (``None`` if time decides), and the criterion in words.

    Under the rule ``doubling`` it only determines which constant batch size is compared with the plan. Raise
    ``ConfigError`` if it is unknown.
    """
    if ask.rule == "doubling":
        first = ask.first_batch_size
        rule_text = f"doubles from {first} where the lower end of the critical batch size exceeds twice the batch"
        return source.critical or float(first or 1), rule_text
    rule_text = "lower end of the batch size that is best for each phase: "
    if ask.price is not None:
        return ask.price, f"{rule_text}a step is worth {number(ask.price)} examples"
    if ask.throughput is not None:
        return None, f"{rule_text}least time on {plural(ask.devices, 'device')}"
    if source.critical is None:
        raise ConfigError(
            f"{source.optimizer or source.what}: the critical batch size is unknown, so there is no price of a step: "
            "give it in examples per step: --rule 'price(step_price=1000)'"
        )
    return source.critical, f"{rule_text}a step is worth {number(source.critical)} examples, the critical batch size"


def allowed(source: PhaseSource, ask: PlanRequest, price: float | None) -> Array:
    """Return the candidate batch sizes, shape ``[M]``, increasing; raise ``ConfigError`` if there is none."""
    low, high = source.measured
    if not math.isfinite(high):
        known = [phase.critical.interval[1] or phase.critical.value or 0.0 for phase in source.phases]
        high = _OPEN * max(*known, price or 0.0)
        if high > LARGEST:
            raise ConfigError(
                f"batch sizes up to {high:.3g} are too many to compare: is the price, or a critical batch size, right?"
            )
    if ask.throughput is not None:
        span = ask.throughput.span(source.optimizer, ask.devices)
        if span is None:
            raise ConfigError(f"there is no step time for {source.optimizer or 'this run'}")
        low, high = max(low, span[0]), min(high, span[1])
    high = min(high, ask.max_batch_size or math.inf)
    first = ask.first_batch_size
    if first is not None and not low <= first <= high:
        raise ConfigError(f"first_batch_size={first} of --rule doubling is not between {low:g} and {high:g}")
    step = ask.divisible_by or source.grain
    sizes = candidates(low / step, high / step) * step
    if not len(sizes):
        raise ConfigError(
            f"no multiple of {step} lies between {low:g} and {high:g}, the batch sizes that are known and allowed"
        )
    return sizes


def seconds(source: PhaseSource, ask: PlanRequest, sizes: Array) -> Array:
    """Return the seconds per step at each batch size, shape ``[M]``."""
    assert ask.throughput is not None
    return ask.throughput.seconds_per_step(source.optimizer, sizes, ask.devices)


def chosen(
    source: PhaseSource, ask: PlanRequest, sizes: Array, steps: Array, cost: Array, confidence: float
) -> tuple[Array, list[str]]:
    """Return the batch size of every phase, and remarks.

    ``steps`` in every phase (see :func:`.phases.steps_of`) and ``cost`` per step are given over ``sizes``; the lower
    end of the interval at ``confidence`` decides.
    """
    if ask.rule == "doubling":
        first = float(ask.first_batch_size or 1)
        steps_up = doubled(source.phases, first, float(sizes[-1]))
        more = 2 * steps_up[-1]
        if doubled(source.phases, first, more)[-1] < more:
            return steps_up, []
        why = "allowed" if more > (ask.max_batch_size or math.inf) else "known"
        return steps_up, [f"batch size {steps_up[-1]:g} stays at the end, where the rule asks for more than is {why}"]
    best, notes = lower_ends(sizes[(steps * cost).argmin(axis=2)], confidence), []  # the smallest of ties
    if len(sizes) > 1 and best[-1] == sizes[-1]:
        why = (
            "allowed" if sizes[-1] + (ask.divisible_by or source.grain) > (ask.max_batch_size or math.inf) else "known"
        )
        notes.append(f"batch size {sizes[-1]:g} is the largest that is {why}: a larger one may be better at the end")
    if len(sizes) > 1 and best[0] == sizes[0]:
        notes.append(f"batch size {sizes[0]:g} is the smallest that is known: a smaller one may be better at the start")
    return best, notes


def best_constant(source: PhaseSource, cost: Array, sizes: Array) -> int:
    """Return the constant batch size of least cost, by the curve of the whole run if there is one."""
    steps = steps_of(source.entire, sizes)[0].sum(axis=0)
    return int(sizes[np.argmin(steps * cost)])
