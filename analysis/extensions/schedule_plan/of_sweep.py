"""Phases from a sweep: the critical batch size between one loss and the next.

The steps between two targets form a curve over batch sizes like those to one target, from the same trials, at the
learning rate that is best for the hardest target, because a run has only one learning rate.
"""

from __future__ import annotations

import math
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
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.extensions.schedule_plan.phases import PhaseEstimate
from analysis.extensions.schedule_plan.source import PhaseSource
from analysis.read.results import Results, load
from cbs.errors import ConfigError, ResultsError

FEWEST = 3
"""Smallest number of batch sizes from which there is an interval."""

SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Default ends of phases as fractions of the examples to the target; each phase is as long as all before it, because
the noise scale changes fastest early in training."""


def of_sweep(
    path: str | os.PathLike[str], config: AnalysisConfig, targets: Sequence[float] | None, optimizer: str | None
) -> list[PhaseSource]:
    """Return one source per optimizer.

    Args:
        path: one sweep, or a folder of sweeps.
        config: configuration of the analysis.
        targets: losses at which phases end; ``None`` for the losses of the run nearest the critical batch size after
            :data:`SHARES` of its examples, and the sweep's own target.
        optimizer: label of the optimizer to plan for; ``None`` for all.

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
    reached = [point for point in answer.points if point.reached]
    return PhaseSource(
        what=f"steps between {len(ends)} losses in {group.sweep}",
        optimizer=group.optimizer,
        phases=tuple(phases),
        whole=None if answer.fit is None else _phase(str(answer.target), answer.fit, answer.confidence),
        measured=(sizes[0], sizes[-1]),
        critical=answer.critical_batch_size,
        grain=math.gcd(*sizes),
        law=None if law.trend is Trend.UNKNOWN else law,
        best_lrs=tuple((entry.batch_size, entry.lr) for entry in law.optima if not entry.edge),
        highest_lrs=tuple(_highest(study) for study in answer.studies if np.isfinite(study.steps).any()),
        decays=_decays(results, [point.trials[0] for point in reached]),
        example_unit=group.example_unit,
        tokens_per_example=group.tokens_per_example,
        notes=tuple(notes),
    )


def _shares(answer: Answer, results: Results) -> list[float]:
    """Return the losses of a run near the critical batch size after :data:`SHARES` of its examples, to three digits."""
    reached = [point for point in answer.points if point.reached]
    if not reached:
        raise ResultsError(f"{answer.target} was reached at no batch size: {answer.advice}")
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


def _increments(answer: Answer, steps: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    """Return the batch sizes at which seeds reached the target, and their steps in every phase, shape ``[phases,
    seeds]``.

    ``steps`` are those of every trial to every target, shape ``[phases, trials]``.
    """
    reached = [point for point in answer.points if point.reached]
    tables = [np.diff(steps[:, list(point.trials)], axis=0, prepend=0.0) for point in reached]
    return [point.batch_size for point in reached], tables


def _phase(where: str, fit: Fit, confidence: float) -> PhaseEstimate:
    values, value = fit.resampled_power.critical, float(fit.power.critical)
    ends = interval(values, confidence)
    unseen = not 0 < value < np.inf or (None in ends and not fit.batch_sizes[0] <= value <= fit.batch_sizes[-1])
    critical = Quantity(None if unseen else value, ends)
    return PhaseEstimate(where=where, critical=critical, estimate=fit.power, resampled=fit.resampled_power)


def _highest(study: Study) -> tuple[int, float]:
    """Return the batch size, and the largest learning rate at which a seed reached the target."""
    return study.batch_size, float(study.lrs[np.isfinite(study.steps).any(axis=1)].max())


def _decays(results: Results, trials: Sequence[int]) -> bool | None:
    """Return whether the learning rate ends below its peak in any of these trials; ``None`` if they do not record
    it."""
    rows = results.evaluations[results.evaluations["trial"].isin(trials) & (results.evaluations["step"] > 0)]
    ends = rows.groupby("trial")["lr"].agg(["last", "max"])
    return None if ends.isna().any(axis=None) else bool((ends["last"] < 0.999 * ends["max"]).any())
