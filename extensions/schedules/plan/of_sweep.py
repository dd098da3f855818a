"""Phases from a sweep: the critical batch size between one loss and the next.

The steps between two targets form a curve over batch sizes like those to one target, from the same trials, at the
learning rate that is best for the hardest target, because a run has only one learning rate. What a finer grid of
learning rates would have saved of all steps is taken off the steps of every phase in proportion. The critical batch
size of a phase is that of least steps times examples, so it lies within the measured batch sizes or is unknown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import AtBest, at_best
from analysis.estimate.definitions.least_product import least_product
from analysis.estimate.diagnosis import SUDDEN, Verdict
from analysis.estimate.draws import Draws, draw
from analysis.estimate.estimates import answers
from analysis.estimate.learning_rate_law import Trend, learning_rate_law
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.quantities import Array, Quantity, interval
from analysis.read.results import Results, load
from cbs.errors import ConfigError, ResultsError
from extensions.schedules.plan.phases import PhaseEstimate, PhaseSource

FEWEST = 3
"""Smallest number of batch sizes from which there is an interval."""

SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Default ends of phases as fractions of the examples to the target; each phase is as long as all before it, because
the noise scale changes fastest early in training."""


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
                phase_sources.append(_source(results, answer, targets))
            except ResultsError as error:
                refused.append(f"{answer.group.optimizer}: {error}")
    if not phase_sources:
        raise ResultsError("no plan: " + "; ".join(refused))
    return [replace(source, notes=(*source.notes, *results.notes, *refused)) for source in phase_sources]


def _ordered(targets: Sequence[float], results: Results) -> list[float]:
    return sorted(set(targets), reverse=results.groups[0].target.direction == "below")


def _source(results: Results, answer: Answer, targets: Sequence[float] | None) -> PhaseSource:
    group = answer.group
    values = _shares(answer, results) if targets is None else _ordered(targets, results)[:-1]
    ends = [*(replace(answer.target, value=value) for value in values), answer.target]
    if len(ends) < 2:
        raise ResultsError("one target does not show how the critical batch size grows: repeat --target")
    trial, step, value = (results.evaluations[name].to_numpy() for name in ("trial", "step", "value"))
    steps = [target.crossings(trial, step, value, len(results.trials)) for target in ends]
    reached = [study for study in answer.studies if study.winner is not None]
    if len(reached) < FEWEST:
        raise ResultsError(
            f"{answer.target} was reached at {len(reached)} batch sizes, and an interval needs {FEWEST} or more"
        )
    sizes = [study.batch_size for study in reached]
    tables = [_increments(study, np.array(steps)) for study in reached]
    least = np.min([np.nanmin(table, axis=1) for table in tables], axis=0)
    for before, after, steps_between in zip(["the start", *ends], ends, least, strict=False):
        if not steps_between > 0:
            raise ResultsError(f"no step lies between {before} and {after}: take targets further apart")
    whole = at_best(reached)
    curves = [
        draw(sizes, [_of_phase(each, table[place]) for each, table in zip(whole, tables, strict=True)],
             answer.config.resamples, answer.config.seed)
        for place in range(len(ends))
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
