r"""A table of batch sizes, planned from what was measured, and what it will take.

Every phase of a run (see :mod:`analysis.estimate.phases`) gets the batch size that is best for it:

===========  ==========================================================================================================
``price``    makes steps times (price + batch size) as small as can be: :math:`B = \sqrt{r b}` with the price r in
             examples per step and the critical batch size b of the phase (McCandlish et al. 2018, arXiv 1812.06162,
             appendix D). Where step times are known, the time instead: what ``cbs recommend`` calls ``time``, and on
             given devices ``cost`` and ``priced`` as well.
``doubling`` doubles where b exceeds twice the batch size (Merrill et al., arXiv 2505.23971).
===========  ==========================================================================================================

The lower end of the interval decides, so that noise in the measurement does not make a batch larger than it pays; a
plan never shrinks a batch. What it takes is predicted on every resample, for the table as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.phases import Phase, steps_of
from analysis.phrases import number
from analysis.questions.schedule_plan.outcome import outcomes, verdict
from analysis.questions.schedule_plan.plans import Ask, PlannedStage, SchedulePlan, SchedulePlans
from analysis.questions.schedule_plan.sizes import allowed, best_constant, chosen, costs, price_of
from analysis.questions.schedule_plan.source import Source
from cbs.batch_schedules import OpenLoop, Run
from cbs.batch_schedules.base import of_table
from cbs.config import Schedule
from cbs.errors import ConfigError

FURTHEST = 4.0
"""A budget of at most so many times the examples that were measured; beyond, a plan would be a guess."""


def plan_schedule(sources: Sequence[Source], ask: Ask, config: AnalysisConfig = DEFAULT) -> SchedulePlans:
    """A plan for every source; a ``ConfigError`` if no batch size is allowed, a price is missing, or the budget is far
    beyond what was measured."""
    timing = "" if ask.throughput is None else f"{ask.throughput.statement}; {ask.throughput.spread}"
    return SchedulePlans(config=config, plans=tuple(_plan(source, ask, config) for source in sources), timing=timing)


def _plan(source: Source, ask: Ask, config: AnalysisConfig) -> SchedulePlan:
    price, decided_by = price_of(source, ask)
    sizes = allowed(source, ask, price)
    steps, cost = steps_of(source.phases, sizes), costs(source, ask, sizes, price)
    of_phases, at_ends = chosen(source, ask, sizes, steps, cost, config.confidence)
    table, ends = _table(source.phases, of_phases, ask)
    budget = ask.budget or math.ceil(ends[-1])
    factors, said = _lr_factors(source, ask, table)
    found = outcomes(source, ask, table, best_constant(steps, cost, sizes), sizes, config)
    last = [int(np.flatnonzero(of_phases == stage.batch_size)[-1]) for stage in table.stages]
    counts = table.steps(budget)
    if not counts[0]:
        raise ConfigError(f"the budget of {budget:,} examples holds no batch of {table.stages[0].batch_size}")
    rows = zip(table.starts, table.stages, counts, last, factors, strict=True)
    return SchedulePlan(
        source=source,
        ask=ask,
        decided_by=decided_by,
        budget=budget,
        stages=tuple(
            PlannedStage(
                start=start,
                batch_size=stage.batch_size,
                steps=count,
                until=source.phases[place].where,
                critical=source.phases[place].critical,
                lr_factor=factor,
            )
            for start, stage, count, place, factor in rows
            if count
        ),
        phase_ends=tuple(ends.tolist()),
        outcomes=found,
        verdict=verdict(found[0], found[1], config),
        notes=(*source.notes, *at_ends, *_of_budget(budget, float(ends[-1])), *said),
    )


def _of_budget(budget: int, whole: float) -> list[str]:
    """What has to be said of a budget, where the phases take ``whole`` examples."""
    if budget > FURTHEST * whole:
        raise ConfigError(
            f"the budget of {budget:,} examples is {number(budget / whole)} times what the measured phases take "
            f"({number(whole)}): measure further, or plan for {math.floor(FURTHEST * whole):,} at most"
        )
    if budget > math.ceil(whole):
        return [
            f"the measured phases end after {number(whole)} of {budget:,} examples: beyond, the last batch size is "
            "kept, and nothing is known"
        ]
    return [f"the budget ends before the last phase, which takes {number(whole)} examples"] if budget < whole else []


def _table(phases: Sequence[Phase], chosen: Array, ask: Ask) -> tuple[OpenLoop, Array]:
    """Stages as a trainer takes them, and the examples at which the phases end."""
    sizes = np.asarray(chosen)
    ends = np.cumsum(sizes * [np.exp(phase.estimate.log_steps(sizes[[at]])[0]) for at, phase in enumerate(phases)])
    run = Run(batch_size=int(sizes[0]), examples=ask.budget or math.ceil(ends[-1]), lr_schedule=Schedule())
    starts = [0.0, *ends[:-1].tolist()]
    return of_table(run, ((start, int(size), 1.0) for start, size in zip(starts, sizes, strict=True))), ends


def _lr_factors(source: Source, ask: Ask, table: OpenLoop) -> tuple[list[Quantity], list[str]]:
    """On the learning rate of the first stage, and what has to be said of them."""
    ratios = [stage.batch_size / table.stages[0].batch_size for stage in table.stages]
    law = source.law
    measured = [None if law is None else law.factor(table.stages[0].batch_size, ratio) for ratio in ratios]
    if ask.lr_exponent is not None:
        given = [ratio**ask.lr_exponent for ratio in ratios]
        outside = [
            found is not None and not found.interval[0] <= factor <= found.interval[1]
            for found, factor in zip(measured, given, strict=True)
        ]
        said = f"--lr-exponent {ask.lr_exponent:g} is outside the interval of the measured law"
        return [Quantity(factor, (factor, factor)) for factor in given], [said] if any(outside) else []
    if law is None:
        said = "no law of the learning rate was measured: its factors are not known; give --lr-exponent to set them"
        return [UNKNOWN] * len(ratios), [said]
    beyond = any(found is not None and found.extrapolated for found in measured)
    said = "the learning rate of the largest batch size lies beyond every known optimum"
    found = [UNKNOWN if factor is None else Quantity(factor.value, factor.interval) for factor in measured]
    return found, [said] if beyond else []
