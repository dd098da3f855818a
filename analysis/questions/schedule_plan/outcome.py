"""What a table of batch sizes takes, beside the best constant one and Seesaw, and whether it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.phases import along, asymptotes, equal_examples, jointly, steps_of
from analysis.phrases import number, percent
from analysis.questions.schedule_plan.plans import Ask, Outcome
from analysis.questions.schedule_plan.sizes import seconds
from analysis.questions.schedule_plan.source import Source
from cbs.batch_schedules import BATCH_SCHEDULES, OpenLoop, Run, Stage
from cbs.config import Schedule

SEESAW = "seesaw, cosine"

_ROUNDING = 1e-12
"""Of a share that is 0, such as what a plan of one batch size saves."""


def outcomes(
    source: Source, ask: Ask, table: OpenLoop, constant: int, sizes: Array, config: AnalysisConfig
) -> tuple[Outcome, ...]:
    """Of the plan, of a constant batch size, and of Seesaw from there in place of a cosine; ``sizes`` are the constant
    batch sizes that may have as many examples as the plan."""
    same = OpenLoop(starts=(0,), stages=(Stage(constant),))
    named = {"plan": table, f"constant {constant:,}": same}
    cosine = _seesaw(constant, math.ceil(along(source.phases, [0], [constant]).examples[0]), int(sizes[-1]))
    if cosine is not None:
        named[SEESAW] = cosine
    return tuple(_outcome(name, each, source, ask, sizes, config) for name, each in named.items())


def _outcome(name: str, table: OpenLoop, source: Source, ask: Ask, sizes: Array, config: AnalysisConfig) -> Outcome:
    batch_sizes = [stage.batch_size for stage in table.stages]
    course = along(source.phases, table.starts, batch_sizes)
    hours = UNKNOWN
    if ask.throughput is not None:
        took, count = seconds(source, ask, course.sizes), len(course.stages) - 1
        drawn = ask.throughput.drawn(source.optimizer, course.sizes, ask.devices, count, config.seed)
        factors = np.vstack([np.ones_like(took), drawn])
        hours = Quantity.drawn((course.stages * took * factors).sum(axis=1) / 3600, config.confidence)
    unlike = jointly(source.phases, source.correlation, config.seed)
    other = along(unlike, table.starts, batch_sizes)
    saved = 1.0 - other.steps / equal_examples(steps_of(unlike, sizes), sizes, other.examples)
    saved = np.where(abs(saved) < _ROUNDING, 0.0, saved)
    return Outcome(
        name=name,
        batch_sizes=tuple(batch_sizes),
        steps=Quantity.drawn(course.steps, config.confidence),
        examples=Quantity.drawn(course.examples, config.confidence),
        hours=hours,
        gamma=_gamma(source, table.starts, batch_sizes, config),
        steps_saved=UNKNOWN if name.startswith("constant") else Quantity.drawn(saved, config.confidence),
    )


def _seesaw(batch_size: int, examples: int, cap: int) -> OpenLoop | None:
    """Its batch sizes in place of a cosine; ``None`` where there is no room for any growth."""
    if 2 * batch_size > cap or examples < 4 * batch_size:
        return None
    falling = Schedule(name="cosine", decay_examples=examples)
    made = BATCH_SCHEDULES.make("seesaw", Run(batch_size=batch_size, examples=examples, lr_schedule=falling), cap=cap)
    assert isinstance(made, OpenLoop)
    sizes = [stage.batch_size for stage in made.stages]
    kept = [place for place, size in enumerate(sizes) if not place or size != sizes[place - 1]]
    return OpenLoop(starts=tuple(made.starts[at] for at in kept), stages=tuple(made.stages[at] for at in kept))


def _gamma(source: Source, starts: Sequence[float], sizes: Sequence[int], config: AnalysisConfig) -> Quantity:
    if not source.hyperbolas:
        return UNKNOWN
    unlike = jointly(source.hyperbolas, source.correlation, config.seed)
    course = along(unlike, starts, sizes)
    fewest, cheapest = asymptotes(unlike)
    with np.errstate(all="ignore"):
        return Quantity.drawn((course.steps / fewest - 1.0) * (course.examples / cheapest - 1.0), config.confidence)


def verdict(plan: Outcome, constant: Outcome, config: AnalysisConfig) -> str:
    """Whether a plan buys anything, in words."""
    as_good = f"a constant batch size of {constant.batch_sizes[0]:,} is as good"
    if len(plan.batch_sizes) == 1:
        return f"the critical batch size does not grow, as far as its intervals tell: {as_good}"
    low, high = plan.steps_saved.interval
    saved = plan.steps_saved.value
    if saved is None:
        return "no constant batch size that was measured has as many examples, so what the plan saves is not known"
    word = "saves" if saved > 0 else "costs"
    told = f"{number(100 * abs(saved))} % of the steps of the constant batch size with as many examples"
    if low is None or high is None:
        return f"the plan {word} {told}, with no interval"
    if low <= 0 <= high:
        return f"{as_good} for all that was measured: the plan {word} {told}, and the interval holds 0"
    return f"the plan {word} {told}, at {percent(config.confidence)} % confidence"
