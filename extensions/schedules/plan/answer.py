r"""Plan a table of batch sizes from measurements, and predict what it will take.

Every phase of a run (see :mod:`extensions.schedules.plan.phases`) gets the batch size that is best for it:

===========  ==========================================================================================================
``price``    minimises steps times (price + batch size), at :math:`B = \sqrt{r b}` with the price r in examples per
             step and the critical batch size b of the phase (McCandlish et al. 2018, arXiv 1812.06162, appendix D).
             If step times are known, it minimises the time instead, the objective ``time`` of ``cbs recommend``; for
             given devices this also minimises ``cost`` and ``priced``.
``doubling`` doubles the batch size where b exceeds twice the batch size (Merrill et al., arXiv 2505.23971).
===========  ==========================================================================================================

The lower end of the interval decides, so that noise in the measurement does not make a batch too large; a plan never
reduces the batch size. Its steps and examples are predicted on every draw, for the table as it stands, under every
rule of the learning rate (:mod:`extensions.schedules.plan.outcome`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.formatting import number
from analysis.quantities import UNKNOWN
from cbs.errors import ConfigError
from cbs.registry.values import parse_amount
from cbs.schedules.batch_size import RunSettings, of_table
from cbs.trial.config import Schedule
from extensions.schedules.plan.of_sweep import of_sweep
from extensions.schedules.plan.of_trace import is_trace, of_curve, of_trace
from extensions.schedules.plan.outcome import LearningRateRule, beyond, learning_rates, outcomes, verdict
from extensions.schedules.plan.phases import PhaseSource, steps_of
from extensions.schedules.plan.plans import LAW, PlannedStage, PlanRequest, SchedulePlan, SchedulePlans
from extensions.schedules.plan.sizes import allowed, best_constant, chosen, price_of, seconds

FURTHEST = 4.0
"""Largest budget as a multiple of the measured examples; a plan beyond it would be a guess."""


def sources(
    path: str | os.PathLike[str],
    config: AnalysisConfig,
    *,
    targets: Sequence[float] | None = None,
    ratio: float = 1.0,
    optimizer: str | None = None,
    budget: str | None = None,
    tokens_per_example: int | None = None,
) -> tuple[list[PhaseSource], int | None]:
    """Return the phases of a sweep, a noise trace or a table, one source per optimizer, and the budget in examples.

    What ``path`` is follows from names: a ``noise_scale.json``, a ``steps.parquet`` or a folder with one of them is a
    trace, another file a table of critical batch sizes, and another folder a sweep. The budget is given in tokens if an
    example has tokens. The other arguments are those of :func:`.of_sweep`, :func:`.of_trace` and :func:`.of_curve`;
    incompatible ones are a ``ConfigError``.
    """
    trace = is_trace(path)
    curve = not trace and Path(path).is_file()
    if tokens_per_example is not None and tokens_per_example < 1:
        raise ConfigError(f"--tokens-per-example must be at least 1, got {tokens_per_example}")
    if targets and (trace or curve):
        raise ConfigError("--target goes with a results folder")
    if not trace and ratio != 1.0:
        raise ConfigError("--ratio goes with a noise_scale.json or a steps.parquet")
    if not ratio > 0:
        raise ConfigError(f"--ratio must be above 0, got {ratio:g}")
    asked = None if budget is None else parse_amount(budget)
    if curve:
        end = None if asked is None else asked // (tokens_per_example or 1)
        return [of_curve(path, config, end=end, tokens_per_example=tokens_per_example, optimizer=optimizer)], end
    if trace:
        sources_of_phases = [of_trace(path, config, ratio, optimizer, tokens_per_example)]
    else:
        sources_of_phases = [
            _counted(source, tokens_per_example) for source in of_sweep(path, config, targets, optimizer)
        ]
    lengths = {source.tokens_per_example for source in sources_of_phases}
    if asked is not None and len(lengths) > 1:
        raise ConfigError("examples differ in length between these optimizers: choose one with --optimizer")
    return sources_of_phases, None if asked is None else max(1, asked // (lengths.pop() or 1))


def _counted(source: PhaseSource, tokens_per_example: int | None) -> PhaseSource:
    """Return ``source`` with the number of tokens per example, which its sweep may not record."""
    known = source.tokens_per_example
    if None not in (known, tokens_per_example) and known != tokens_per_example:
        raise ConfigError(f"--tokens-per-example {tokens_per_example}: examples of these results have {known}")
    return replace(source, tokens_per_example=known or tokens_per_example)


def plan_schedule(
    sources: Sequence[PhaseSource], ask: PlanRequest, config: AnalysisConfig = DEFAULT, folder: str = ""
) -> SchedulePlans:
    """Return a plan for every source, of the sweep in ``folder`` if there is one.

    Raises:
        ConfigError: if no batch size is allowed, a price is missing, or the budget is far beyond what was measured.
    """
    timing = "" if ask.throughput is None else f"{ask.throughput.statement}; {ask.throughput.spread}"
    plans = tuple(_plan(source, ask, config) for source in sources)
    return SchedulePlans(config=config, plans=plans, timing=timing, folder=folder)


def _plan(source: PhaseSource, ask: PlanRequest, config: AnalysisConfig) -> SchedulePlan:
    price, decided_by = price_of(source, ask)
    sizes = allowed(source, ask, price)
    steps = steps_of(source.phases, sizes)
    cost = seconds(source, ask, sizes) if price is None else sizes + price
    of_phases, at_ends = chosen(source, ask, sizes, steps, cost, config.confidence)
    ends = np.cumsum(
        of_phases * [np.exp(phase.log_steps(of_phases[[at]])[0, 0]) for at, phase in enumerate(source.phases)]
    )
    budget = ask.budget or math.ceil(ends[-1])
    run = RunSettings(batch_size=int(of_phases[0]), examples=budget, lr_schedule=Schedule())
    starts = [0.0, *ends[:-1].tolist()]
    table = of_table(run, ((start, int(size), 1.0) for start, size in zip(starts, of_phases, strict=True)))
    stage_sizes = [stage.batch_size for stage in table.stages]
    rules, place = learning_rates(source, ask, stage_sizes)
    rule = None if place is None else rules[place]
    plan_outcomes = outcomes(source, ask, table, rules, place or 0, best_constant(source, cost, sizes), config)
    last = [int(np.flatnonzero(of_phases == size)[-1]) for size in stage_sizes]
    counts = table.steps(budget)
    if not counts[0]:
        raise ConfigError(f"the budget of {budget:,} examples holds no batch of {stage_sizes[0]}")
    factors = rule.factors if rule else (UNKNOWN,) * len(stage_sizes)
    base = rule.base.value if rule else None
    rows = zip(table.starts, table.stages, counts, last, factors, strict=True)
    rule_notes = _of_rule(source, ask, rule, stage_sizes)
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
                until=source.phases[at].where,
                critical=source.phases[at].critical,
                lr_factor=factor,
                lr=UNKNOWN if base is None else factor.times(base),
            )
            for start, stage, count, at, factor in rows
            if count
        ),
        phase_ends=tuple(ends.tolist()),
        lr_rule=rule.name if rule else "",
        outcomes=plan_outcomes,
        verdict=verdict(plan_outcomes[place or 0], source, plan_outcomes[-1], config),
        notes=(*source.notes, *at_ends, *_of_budget(budget, float(ends[-1])), *rule_notes),
    )


def _of_budget(budget: int, whole: float) -> list[str]:
    """Return remarks on a budget if the phases take ``whole`` examples."""
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


def _of_rule(source: PhaseSource, ask: PlanRequest, rule: LearningRateRule | None, sizes: Sequence[int]) -> list[str]:
    """Return remarks on the learning rates."""
    if rule is None:
        return ["the learning rate was not measured, so its factors are unknown; give --lr-exponent to set them"]
    notes = [beyond(source, rule, sizes)]
    if ask.lr_exponent is None and len(sizes) > 1:
        why = (
            "falls, and the growing batch replaces its decay"
            if source.decays
            else "is constant, and the growing batch reduces the noise"
        )
        notes.append(f"learning rate by the {rule.name} rule: that of these runs {why}; --lr-exponent sets another")
    if rule.name == LAW and source.law is not None and sizes[-1] > source.law.inside[-1]:
        notes.append("the learning rate of the largest batch size lies beyond every known optimum")
    return [line for line in notes if line]
