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

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.best_rate import AtBest, at_best
from analysis.estimate.definitions.least_product import least_product
from analysis.estimate.diagnosis import SUDDEN, Verdict
from analysis.estimate.draws import Draws, draw
from analysis.estimate.estimates import answers
from analysis.estimate.learning_rate_law import Trend, learning_rate_law
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.formatting import number, plural
from analysis.quantities import UNKNOWN, Array, Quantity, interval
from analysis.read.results import Results, load
from cbs.errors import ConfigError, ResultsError
from cbs.registry.values import parse_amount
from cbs.schedules.batch_size import RunSettings, of_table
from cbs.trial.config import Schedule
from extensions.schedules.plan.of_trace import is_trace, of_curve, of_trace
from extensions.schedules.plan.outcome import LearningRateRule, beyond, learning_rates, outcomes, verdict
from extensions.schedules.plan.phases import PhaseEstimate, PhaseSource, steps_of
from extensions.schedules.plan.plans import LAW, PlannedStage, PlanRequest, SchedulePlan, SchedulePlans
from extensions.schedules.plan.stages import allowed, chosen, price_of, seconds

FURTHEST = 4.0  # Largest budget as a multiple of the measured examples; a plan beyond it would be a guess


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
    """Return a plan for every source that has a price of a step, of the sweep in ``folder`` if there is one.

    Raises:
        ConfigError: if no batch size is allowed, no source has a price, or the budget is far beyond what was measured.
    """
    timing = "" if ask.throughput is None else f"{ask.throughput.statement}; {ask.throughput.spread}"
    priced, notes = [], []
    for source in sources:
        try:
            priced.append((source, *price_of(source, ask)))
        except ConfigError as error:
            notes.append(str(error))
    if notes and not priced:
        raise ConfigError(notes[0])
    plans = tuple(_plan(source, price, decided_by, ask, config) for source, price, decided_by in priced)
    return SchedulePlans(config=config, notes=tuple(notes), plans=plans, timing=timing, folder=folder)


def _plan(
    source: PhaseSource, price: float | None, decided_by: str, ask: PlanRequest, config: AnalysisConfig
) -> SchedulePlan:
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
    rules, index = learning_rates(source, ask, stage_sizes)
    rule = None if index is None else rules[index]
    # the constant batch size of least cost, by the curve of the whole run if there is one
    constant = int(sizes[np.argmin(steps_of(source.entire, sizes)[0].sum(axis=0) * cost)])
    plan_outcomes = outcomes(source, ask, table, rules, index or 0, constant, config)
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
        verdict=verdict(plan_outcomes[index or 0], source, plan_outcomes[-1], config),
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


FEWEST = 3  # Smallest number of batch sizes from which there is an interval

# Default ends of phases as fractions of the examples to the target; each phase is as long as all before it, because
# the noise scale changes fastest early in training.
SHARES = (1 / 8, 1 / 4, 1 / 2)


def of_sweep(
    path: str | os.PathLike[str], config: AnalysisConfig, targets: Sequence[float] | None, optimizer: str | None
) -> list[PhaseSource]:
    """Return one source per optimizer, or for the ``optimizer`` of a label, of one sweep or a folder of sweeps.

    Phases end at ``targets``; by default at the losses of the run nearest the critical batch size after :data:`SHARES`
    of its examples, and at the sweep's own target.

    Raises:
        ConfigError: if targets or the optimizer are invalid.
        ResultsError: if there are no usable results, or no plan can be made from them.
    """
    results = load(path)
    names = list(dict.fromkeys(group.optimizer for group in results.groups))
    if optimizer is not None and optimizer not in names:
        raise ConfigError(f"--optimizer {optimizer}: these results have {', '.join(names)}")
    hardest = None if targets is None else [_ordered(targets, results)[-1]]
    phase_sources, refused = [], []
    for answer in answers(results, config, targets=hardest, noise=False):
        if optimizer in (None, answer.group.optimizer):
            try:
                phase_sources.append(_source(results, answer, targets, join=targets is None))
            except ResultsError as error:
                refused.append(f"{answer.group.optimizer}: {error}")
    if not phase_sources:
        raise ResultsError("no plan: " + "; ".join(refused))
    return [replace(source, notes=(*source.notes, *results.notes, *refused)) for source in phase_sources]


def _ordered(targets: Sequence[float], results: Results) -> list[float]:
    return sorted(set(targets), reverse=results.groups[0].target.direction == "below")


def _source(results: Results, answer: Answer, targets: Sequence[float] | None, *, join: bool) -> PhaseSource:
    """Return the source of one answer; ``join``: a phase that is too short for the evaluations joins a neighbour."""
    group = answer.group
    values = list(_shares(answer, results) if targets is None else _ordered(targets, results)[:-1])
    ends = [*(replace(answer.target, value=value) for value in values), answer.target]
    if len(ends) < 2:
        raise ResultsError("one target does not show how the critical batch size grows: repeat --target")
    trial, step, value = (results.evaluations[name].to_numpy() for name in ("trial", "step", "value"))
    steps = [target.crossings(trial, step, value, len(results.trials)) for target in ends]
    reached = [study for study in answer.studies if study.winner is not None]
    if len(reached) < FEWEST:
        raise ResultsError(
            f"{answer.target} was reached at {plural(len(reached), 'batch size')}, an interval needs {FEWEST} or more"
        )
    sizes = [study.batch_size for study in reached]
    tables = [_increments(study, np.array(steps)) for study in reached]
    least = np.min([np.nanmin(table, axis=1) for table in tables], axis=0)
    for index, (before, after, between) in enumerate(zip(["the start", *ends], ends, least, strict=False)):
        if between > 0:
            continue
        if join:
            del values[max(index - 1, 0)]
            return _source(results, answer, [*values, answer.target.value], join=True)
        raise ResultsError(f"no step lies between {before} and {after}: give each --target further from the next")
    whole = at_best(reached)
    curves = [
        draw(sizes, [_of_phase(each, table[index]) for each, table in zip(whole, tables, strict=True)],
             answer.config.resamples, answer.config.seed)
        for index in range(len(ends))
    ]  # fmt: skip
    notes = [f"{group.optimizer}: {answer.verdict}: {answer.advice}"] if answer.verdict is not Verdict.OK else []
    for target, draws in zip(ends, curves, strict=True):
        change = draws.sudden
        if change is not None and change.chance > SUDDEN:
            where = f"between batch sizes {change.below:g} and {change.above:g}"
            notes.append(f"up to {target}: the steps of the phase have a {change.kind} {where}, off their curve")
    law = learning_rate_law(answer.studies, answer.config)
    return PhaseSource(
        what=f"steps between {len(ends)} losses in {group.sweep}",
        optimizer=group.optimizer,
        phases=tuple(_phase(str(end), draws, answer.confidence) for end, draws in zip(ends, curves, strict=True)),
        whole=None if answer.draws is None else _phase(str(answer.target), answer.draws, answer.confidence),
        measured=(sizes[0], sizes[-1]),
        critical=answer.critical_batch_size,
        grain=math.gcd(*sizes),
        law=None if law.trend is Trend.UNKNOWN else law,
        best_lrs=tuple((entry.batch_size, entry.lr) for entry in law.optima if not entry.edge),
        highest_lrs=tuple(
            (study.batch_size, float(study.lrs[done.any(axis=1)].max()))
            for study in answer.studies
            if (done := np.isfinite(study.steps)).any()
        ),
        decays=_decays(results, [point.trials[0] for point in answer.points if point.reached]),
        example_unit=group.example_unit,
        tokens_per_example=group.tokens_per_example,
        notes=tuple(notes),
    )


def _shares(answer: Answer, results: Results) -> list[float]:
    """Return the losses of a run near the critical batch size after :data:`SHARES` of its examples, to three digits."""
    reached = [point for point in answer.points if point.reached]
    if not reached:
        raise ResultsError(f"{answer.target} was reached between two evaluations at no batch size: {answer.advice}")
    middle = answer.critical_batch_size or float(np.sqrt(reached[0].batch_size * reached[-1].batch_size))
    point = min(reached, key=lambda point: abs(np.log(point.batch_size / middle)))
    curve = results.evaluations[results.evaluations["trial"] == point.trials[0]]
    after = curve[curve["step"] > 0]
    steps, values = after["step"].to_numpy(dtype=float), after["value"].to_numpy()
    if len(steps) < FEWEST:
        raise ResultsError(f"a run has {len(steps)} evaluations: give the losses at which phases end with --target")
    values_there = np.interp(np.log(np.array(SHARES) * point.steps_per_seed[0]), np.log(steps), values)
    kept: list[float] = []
    for value in (float(f"{value:.3g}") for value in values_there):
        harder = not kept or replace(answer.target, value=kept[-1]).reached(value)
        if harder and replace(answer.target, value=value).reached(answer.target.value):
            kept.append(value)
    return kept


def _increments(study: Study, steps: Array) -> Array:
    """Return the steps of every seed in every phase at the best learning rate of a study, shape ``[phases, N]``; NaN
    where it did not reach the target.

    ``steps`` are those of every trial to every target, shape ``[phases, trials]``.
    """
    reached = np.isfinite(study.steps[study.winner])
    table = np.full((len(steps), len(reached)), np.nan)
    table[:, reached] = np.diff(steps[:, study.trials[study.winner][reached]], axis=0, prepend=0.0)
    return table


def _of_phase(whole: AtBest, steps: Array) -> AtBest:
    """Return ln of a phase's ``steps`` ``[N]`` as if at the best learning rate of the whole run."""
    nothing = np.full(len(steps), np.nan)
    return AtBest(values=np.log(steps) - whole.saving, floors=nothing, ceilings=nothing, variance=whole.variance)


def _phase(where: str, draws: Draws, confidence: float) -> PhaseEstimate:
    drawn = least_product(draws)
    value = float(np.median(drawn))

    def log_steps(sizes: Array) -> Array:
        return np.vstack([draws.estimate(sizes), draws.drawn(sizes)])

    critical = Quantity(value if 0 < value < np.inf else None, interval(drawn, confidence))
    return PhaseEstimate(where=where, critical=critical, log_steps=log_steps)


def _decays(results: Results, trials: Sequence[int]) -> bool | None:
    """Return whether the learning rate ends below its peak in any of these trials; ``None`` if they do not record
    it."""
    rows = results.evaluations[results.evaluations["trial"].isin(trials) & (results.evaluations["step"] > 0)]
    ends = rows.groupby("trial")["lr"].agg(["last", "max"])
    return None if ends.isna().any(axis=None) else bool((ends["last"] < 0.999 * ends["max"]).any())
