"""From results, or from the studies of one optimizer, to answers: fit, definitions, verdict, and per-step columns."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.arrays import UNKNOWN, Array, Interval, Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.attention import attention_logits
from analysis.estimate.curves import StepsCurve
from analysis.estimate.definitions import CurveSample, Definition, chosen
from analysis.estimate.diagnosis import Doubts, judge, not_reached
from analysis.estimate.fitting import Fit, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import SPREAD, Belief
from analysis.estimate.fitting.least_squares import EXPONENTS
from analysis.estimate.fitting.other_forms import other_forms
from analysis.estimate.fitting.quality import leave_one_out
from analysis.estimate.noise import Recorded, measure
from analysis.estimate.optimizer_steps import optimizer_steps
from analysis.estimate.result import Answer, CriticalBatchSize, Hyperbola
from analysis.estimate.studies import Study, best_values, point, studies, within_reach
from analysis.estimate.study_fits import FarSeed, beliefs, fit_studies, sample
from analysis.read.groups import Group
from analysis.read.results import Results
from cbs.errors import ConfigError
from cbs.trial.record import CLIPPED
from cbs.trial.store import finite_or_none
from cbs.trial.target import Target
from cbs.trial.trial_files import read_steps

_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Input for the estimate of one optimizer's curve at one target.

    Attributes:
        target: the target.
        studies: studies in order of increasing batch size.
        not_reached: advice in case no batch size reached the target.
        easier: an easier target that was reached at every batch size; empty if there is none.
    """

    target: Target
    studies: Sequence[Study]
    not_reached: str = ""
    easier: str = ""


def known_value(target: Target) -> float | None:
    """Return the target's value of the metric; ``None`` if it comes from a table that does not give it."""
    return target.value if getattr(target, "known", True) else None


def estimates(
    group: Group, readings: Sequence[Reading], config: AnalysisConfig, believed: Sequence[Belief]
) -> Iterator[Answer]:
    """Yield the answers at every target of one optimizer, without results from the per-step columns.

    All targets use the same random seed, so that they can be compared resample by resample. ``believed`` holds the
    prior of the exponent at each target, see :func:`analysis.estimate.study_fits.beliefs`.
    """
    fits = [fit_studies(reading.studies, config, belief) for reading, belief in zip(readings, believed, strict=True)]
    pairs = zip(fits, readings, strict=True)
    usable = [(fit, known_value(reading.target)) for (fit, *_), reading in pairs if fit is not None]
    measured = [sample(fit, target) for fit, target in usable]
    resampled = [sample(fit, target, resampled=True) for fit, target in usable]
    wanted = chosen(config)
    at = -1
    for reading, (fit, far, used) in zip(readings, fits, strict=True):
        at += fit is not None
        definitions = {
            name: CriticalBatchSize(
                definition=name,
                options=dataclasses.asdict(definition),  # type: ignore[call-overload]
                **({} if fit is None else _critical(definition, measured, resampled, at, config.confidence)),
            )
            for name, definition in wanted.items()
        }
        points = tuple(point(study) for study in reading.studies)
        doubts = Doubts() if fit is None else _doubts(fit, far, used, config.confidence)
        verdict, advice = judge(points, doubts, reading.not_reached, reading.easier)
        yield Answer(
            group=group,
            target=reading.target,
            config=config,
            studies=tuple(reading.studies),
            points=points,
            fit=fit,
            definitions=definitions,
            verdict=verdict,
            advice=advice,
            doubts=doubts,
            **({} if fit is None else _of_curve(fit, config.confidence)),
        )


def _doubts(fit: Fit, far: Sequence[FarSeed], used: Sequence[Trials], confidence: float) -> Doubts:
    ends = interval(fit.resampled.critical, confidence)
    # a part of the curve is seen if the critical batch size does not lie beyond the measured ones, nor does its
    # interval
    critical, exact = float(fit.estimate.critical), not len(fit.resampled_log_steps)
    low, high = (critical, critical) if exact else ends
    return Doubts(
        misfit=fit.misfit,
        left_out=leave_one_out(fit, used),
        ends=ends,
        seen=(
            critical >= fit.batch_sizes[0] and bool(low),
            critical <= fit.batch_sizes[-1] and high is not None and high < math.inf,
        ),
        far_seeds=far,
        exponent_from_prior=not exact and (fit.free_exponent is None or bool(fit.free_exponent.variance >= SPREAD**2)),
        forms=None if exact or None in ends else other_forms(fit),
        bend=None if exact else fit.bend,
    )


def _of_curve(fit: Fit, confidence: float) -> dict[str, Any]:
    def asymptotes(curve: StepsCurve, resampled: StepsCurve, *names: str) -> tuple[dict[str, Quantity], bool]:
        """Return quantities, ``None`` if they describe a part of the curve that is not seen; and whether it is a
        plateau."""
        ends, drawn = interval(resampled.critical, confidence), {name: getattr(resampled, name) for name in names}
        below, above = _beyond(float(curve.critical), ends, fit.batch_sizes, len(resampled.critical))
        unseen = dict.fromkeys(names, below or above) | {"min_steps": above, "min_examples": below}
        values = {name: None if unseen[name] else float(getattr(curve, name)) for name in names}
        return {name: Quantity(values[name], interval(drawn[name], confidence)) for name in names}, below

    own, plateau = asymptotes(fit.estimate, fit.resampled, "min_steps", "examples_at_critical")
    other, _ = asymptotes(fit.hyperbola, fit.resampled_hyperbola, "critical", "min_steps", "min_examples")
    # the exponent is unknown where it runs to an end of the range of the search
    exponent, low, high = (
        end if end is not None and EXPONENTS[0] * (1 + _ROUNDING) < end < EXPONENTS[1] * (1 - _ROUNDING) else None
        for end in (float(fit.estimate.exponent), *interval(fit.resampled.exponent, confidence))
    )
    return own | {
        # a plateau alone does not tell how steeply steps fall before it
        "exponent": UNKNOWN if plateau else Quantity(exponent, (low, high)),
        "hyperbola": Hyperbola(critical_batch_size=other.pop("critical"), **other),
    }


def _critical(
    definition: Definition,
    measured: Sequence[CurveSample],
    resampled: Sequence[CurveSample],
    at: int,
    confidence: float,
) -> dict[str, Any]:
    value, values = float(definition(measured, at)[0]), definition(resampled, at)
    ends = interval(values, confidence)
    if ends[1] == 0.0:  # below the batch sizes that were measured
        ends = None, float(measured[at].batch_sizes[0])
    if definition.on_grid:
        edges = measured[at].batch_sizes[[0, -1]]
        ends = ends[0] if ends[0] != edges[0] else None, ends[1] if ends[1] != edges[1] else None
    return {
        "value": None if any(_beyond(value, ends, measured[at].batch_sizes, len(values))) else finite_or_none(value),
        "interval": ends,
        "remark": definition.remark(measured, at),
        "resampled": values,
    }


def _beyond(value: float, ends: Interval, batch_sizes: Array, resamples: int) -> tuple[bool, bool]:
    """Return whether a value only means "below" or "above" the measured batch sizes."""
    return (
        value <= 0 or (resamples > 0 and ends[0] is None and value < batch_sizes[0]),
        value == math.inf or (resamples > 0 and ends[1] is None and value > batch_sizes[-1]),
    )


def answered(
    readings_by_group: Sequence[tuple[Group, Sequence[Reading]]], config: AnalysisConfig
) -> Iterator[Iterator[Answer]]:
    """Yield the answers of every group at its targets, without results from the per-step columns.

    The prior of a curve's exponent comes from the curves of the same sweep and target.
    """
    curves = [(group.sweep, reading) for group, readings in readings_by_group for reading in readings]
    scopes = [(sweep, reading.target) for sweep, reading in curves]
    believed = iter(beliefs([reading.studies for _, reading in curves], scopes, config))
    for group, readings in readings_by_group:
        yield estimates(group, readings, config, [next(believed) for _ in readings])


def answers(
    results: Results, config: AnalysisConfig, *, targets: Sequence[float | Target] | None = None, noise: bool = True
) -> list[Answer]:
    """Return the answers of every group at every target, in this order.

    Args:
        results, config, targets: as for :func:`analysis.analyze`.
        noise: whether to read the per-step columns (noise scale, diagnostics), which takes most of the time.

    Raises:
        ConfigError: if a target cannot be used.
        ResultsError: if the per-step columns of a trial at the best learning rate cannot be read.
    """
    chosen(config)
    curve, count = [results.evaluations[name].to_numpy() for name in ("trial", "step", "value")], len(results.trials)
    steps = functools.cache(lambda target: target.crossings(*curve, count))
    apart = functools.cache(lambda target: target.apart(*curve, count))
    best = functools.cache(lambda direction: best_values(results.evaluations, count, direction))
    curves = []
    for index, group in enumerate(results.groups):
        direction, readings = group.target.direction, []
        rows = results.of_group(index)
        reachable = within_reach(rows, best(direction), direction)
        for target in _targets(group, targets):
            if (steps(target)[rows.index] == 0).any():
                several = len({each.sweep for each in results.groups}) > 1
                raise ConfigError(
                    f"target {target} is reached before the first step in sweep {group.sweep!r}; choose a harder target"
                    + (", or give the folder of the sweep that is meant" if several else "")
                )
            easier = None if reachable is None else replace(target, value=reachable)
            readings.append(
                Reading(
                    target=target,
                    studies=list(studies(group, rows, target, steps(target), apart(target), curve)),
                    not_reached=not_reached(group, target, easier),
                    easier="" if easier is None else str(easier),
                )
            )
        curves.append((group, readings))
    answers_of_group: list[Answer] = []
    for made in answered(curves, config):
        read = functools.cache(lambda row: read_steps(Path(results.trials.at[row, "folder"]) / "steps.parquet"))
        answers_of_group += [_with_columns(answer, read) for answer in made] if noise else made
    return answers_of_group


def _with_columns(answer: Answer, read: Callable[[int], Recorded]) -> Answer:
    """Add results from the per-step columns; ``read`` returns the columns of a row of the trial table."""
    noise, logits, matrices, clipped = {}, {}, {}, {}
    for entry in answer.points:
        if entry.reached:
            recorded = [read(row) for row in entry.trials]
            noise[entry.batch_size] = measure(
                recorded, entry.steps_per_seed, entry.batch_size, confidence=answer.confidence
            )
            columns = [each for each, _ in recorded]
            logits[entry.batch_size] = attention_logits(columns, entry.steps_per_seed, entry.batch_size)
            matrices[entry.batch_size] = optimizer_steps(columns, entry.steps_per_seed, entry.batch_size)
            pairs = zip(recorded, entry.steps_per_seed, strict=True)
            if shares := [c[CLIPPED][: math.ceil(steps)].mean() for (c, _), steps in pairs if CLIPPED in c]:
                clipped[entry.batch_size] = float(np.mean(shares))
    return replace(answer, noise=noise, attention_logits=logits, optimizer_steps=matrices, clipped=clipped)


def _targets(group: Group, wanted: Sequence[float | Target] | None) -> list[Target]:
    own = group.target
    if not wanted and group.beside:
        raise ConfigError(f"sweep {group.sweep!r} has no target of {own.metric}: give one with --target")
    if not wanted:
        return [own]
    targets = []
    for entry in wanted:
        target = entry if isinstance(entry, Target) else replace(own, value=float(entry))
        if (target.metric, target.direction) != (own.metric, own.direction):
            about = f"whose metric is {own.metric}" if group.beside else f"whose target is {own}"
            raise ConfigError(f"target {target} does not fit sweep {group.sweep!r}, {about}")
        if target not in targets:
            targets.append(target)
    return targets
