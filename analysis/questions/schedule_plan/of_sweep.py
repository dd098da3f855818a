"""Phases from a sweep: the critical batch size between one loss and the next.

The steps between two targets are a curve over batch sizes like those to one target, from the same trials: at the
learning rate that is best for the hardest target, because a run has one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.arrays import Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import EXCESS_RMS, LACK_OF_FIT, Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.fitting import Fit, fit_curve, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.laws.learning_rate import Trend, learning_rate_law
from analysis.estimate.phases import Phase
from analysis.estimate.result import Answer
from analysis.questions.schedule_plan.source import Source
from analysis.read.results import Results, load
from cbs.errors import ConfigError, ResultsError

FEWEST = 3
"""Batch sizes with an interval."""

SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Of the examples to the target: where phases end when nobody says; each is as long as all before it, because the noise
scale moves fastest early."""


def of_sweep(
    path: str | os.PathLike[str], config: AnalysisConfig, targets: Sequence[float] | None, optimizer: str | None
) -> list[Source]:
    """One source per optimizer.

    Args:
        targets: where phases end; ``None`` for the losses of the run nearest the critical batch size after
            :data:`SHARES` of its examples, and the sweep's own target.
        optimizer: the one to plan for, as tables call it; ``None`` for all.

    Raises:
        ConfigError: if targets or the optimizer are no good.
        ResultsError: if there are no usable results, or none with a plan in them.
    """
    results = load(path)
    names = list(dict.fromkeys(group.optimizer for group in results.groups))
    if optimizer is not None and optimizer not in names:
        raise ConfigError(f"--optimizer {optimizer}: these results have {', '.join(names)}")
    hardest = None if targets is None else [_ordered(targets, results)[-1]]
    found, refused = [], []
    for answer in answers(results, config, targets=hardest, noise=False):
        if optimizer in (None, answer.group.optimizer):
            try:
                found.append(_source(results, answer, targets))
            except ResultsError as error:
                refused.append(f"{answer.group.optimizer}: {error}")
    if not found:
        raise ResultsError("no plan: " + "; ".join(refused))
    return [replace(source, notes=(*source.notes, *results.notes, *refused)) for source in found]


def _ordered(targets: Sequence[float], results: Results) -> list[float]:
    return sorted(set(targets), reverse=results.groups[0].target.direction == "below")


def _source(results: Results, answer: Answer, targets: Sequence[float] | None) -> Source:
    group = answer.group
    values = _shares(answer, results) if targets is None else _ordered(targets, results)[:-1]
    ends = [*(replace(answer.target, value=value) for value in values), answer.target]
    if len(ends) < 2:
        raise ResultsError("one target says nothing of how the critical batch size grows: repeat --target")
    trial, step, value = (results.evaluations[name].to_numpy() for name in ("trial", "step", "value"))
    steps = [target.crossings(trial, step, value, len(results.trials)) for target in ends]
    sizes, tables = _increments(answer, np.array(steps))
    if len(sizes) < FEWEST:
        raise ResultsError(
            f"{answer.target} was reached at {len(sizes)} batch sizes, and an interval needs {FEWEST} or more"
        )
    least = np.min([table.min(axis=1) for table in tables], axis=0)
    for before, after, steps_between in zip(["the start", *ends], ends, least, strict=False):
        if not steps_between > 0:
            raise ResultsError(f"no step lies between {before} and {after}: take targets further apart")
    between = [[Trials.of(table[[place]]) for table in tables] for place in range(len(ends))]
    fits = [fit_curve(sizes, trials, config=answer.config) for trials in between]
    notes = [f"{group.optimizer}: {answer.verdict}: {answer.advice}"] if answer.verdict is not Verdict.OK else []
    for target, fit in zip(ends, fits, strict=True):
        off = fit.misfit
        if off is not None and off.probability < LACK_OF_FIT and off.excess_rms > EXCESS_RMS:
            notes.append(f"up to {target}: the steps of the phase lie {100 * off.excess_rms:.2g} % off their curve")
    law = learning_rate_law(answer.studies, answer.config)
    phases = [_phase(str(target), fit, answer.confidence) for target, fit in zip(ends, fits, strict=True)]
    return Source(
        what=f"steps between {len(ends)} losses in {group.sweep}",
        optimizer=group.optimizer,
        phases=tuple(phases),
        hyperbolas=_hyperbolas(answer, phases, fits),
        alike=_alike(fits, tables),
        measured=(sizes[0], sizes[-1]),
        critical=answer.critical_batch_size,
        law=None if law.trend is Trend.UNKNOWN else law,
        example_unit=group.example_unit,
        tokens_per_example=group.tokens_per_example,
        notes=tuple(notes),
    )


def _shares(answer: Answer, results: Results) -> list[float]:
    """Losses of a run near the critical batch size after :data:`SHARES` of its examples, to three digits."""
    reached = [point for point in answer.points if point.reached]
    if not reached:
        raise ResultsError(f"{answer.target} was reached at no batch size: {answer.advice}")
    middle = answer.critical_batch_size or float(np.sqrt(reached[0].batch_size * reached[-1].batch_size))
    point = min(reached, key=lambda point: abs(np.log(point.batch_size / middle)))
    curve = results.evaluations[results.evaluations["trial"] == point.trials[0]]
    after = curve[curve["step"] > 0]
    steps, values = after["step"].to_numpy(dtype=float), after["value"].to_numpy()
    if len(steps) < FEWEST:
        raise ResultsError(f"a run has {len(steps)} evaluations: say with --target at which losses phases end")
    found = np.interp(np.log(np.array(SHARES) * point.steps_per_seed[0]), np.log(steps), values)
    kept: list[float] = []
    for value in (float(f"{value:.3g}") for value in found):
        harder = not kept or replace(answer.target, value=kept[-1]).reached(value)
        if harder and replace(answer.target, value=value).reached(answer.target.value):
            kept.append(value)
    return kept


def _increments(answer: Answer, steps: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    """Batch sizes at which seeds reached the target, and their steps in every phase, shape ``[phases, seeds]``, from
    ``steps`` of every trial to every target, shape ``[phases, trials]``."""
    reached = [point for point in answer.points if point.reached]
    tables = [np.diff(steps[:, list(point.trials)], axis=0, prepend=0.0) for point in reached]
    return [point.batch_size for point in reached], tables


def _alike(fits: Sequence[Fit], tables: Sequence[np.ndarray]) -> np.ndarray:
    """Correlation of the errors of the phases, ``[phases, phases]``: of how the log steps of all seeds at all batch
    sizes lie about the curves. A seed that is slow in one phase is slow in the next, and a target that is crossed late
    makes one phase longer and the next shorter.

    Args:
        fits: of every phase.
        tables: steps at every batch size, see :func:`_increments`.
    """
    curves = np.array([fit.estimate.log_steps(fit.batch_sizes) for fit in fits])
    rows = np.concatenate(
        [np.log(table) - curve[:, None] for table, curve in zip(tables, curves.T, strict=True)], axis=1
    )
    rows = rows[:, np.isfinite(rows).all(axis=0)]
    squares = rows @ rows.T
    scale = np.sqrt(np.diag(squares))
    return np.asarray(squares / np.outer(scale, scale))


def _phase(where: str, fit: Fit, confidence: float) -> Phase:
    values, value = fit.resampled.critical, float(fit.estimate.critical)
    ends = interval(values, confidence)
    unseen = not 0 < value < np.inf or (None in ends and not fit.batch_sizes[0] <= value <= fit.batch_sizes[-1])
    critical = Quantity(None if unseen else value, ends)
    return Phase(where=where, critical=critical, estimate=fit.estimate, resampled=fit.resampled)


def _hyperbolas(answer: Answer, phases: Sequence[Phase], fits: Sequence[Fit]) -> tuple[Phase, ...]:
    """The phases with the exponent held at 1; none where the curve of the whole run, or the data of a phase at the
    level of all phases, exclude that."""
    level = 1.0 - (1.0 - answer.confidence) / len(fits)
    for low, high in (answer.exponent.interval, *(interval(fit.resampled.exponent, level) for fit in fits)):
        if (low is not None and low > 1) or (high is not None and high < 1):
            return ()
    return tuple(
        replace(phase, estimate=fit.hyperbola, resampled=fit.resampled_hyperbola)
        for phase, fit in zip(phases, fits, strict=True)
    )
