"""Judge a batch schedule: compare its runs with the curve of constant batch sizes at the same target."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.studies import NOT_RUN, Study, one_study
from analysis.formatting import plain, plural, shown
from analysis.present.findings import Findings
from analysis.quantities import UNKNOWN, Array, Quantity
from analysis.read.results import load
from analysis.read.throughput import Throughput
from cbs.errors import ResultsError
from cbs.registry.choices import labels
from cbs.trial.lr_choice import best_lr
from cbs.trial.record import examples_at
from cbs.trial.target import Target
from cbs.trial.trial_files import read_steps
from extensions.schedules.judge.gains import ScheduledRun, ScheduleGain, compare, trial_times

FEWEST_SEEDS = 2  # With fewer seeds, the noise of a schedule's runs is known only from the constant batch sizes


HOUR = 3600.0  # Seconds per hour


class ScheduleStanding(StrEnum):
    """Verdict on a schedule; the notes say what prevents a stronger one."""

    BETTER = "better than all constant"
    ALIKE = "no difference shown"
    WORSE = "constant is better"
    UNKNOWN = "not known"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One schedule, starting from one batch size, at one target.

    Attributes:
        answer: answer for the constant batch sizes.
        schedule: name, with the options that distinguish it from others of that name.
        choice: the schedule with its options, as text.
        batch_size: the first batch size.
        best_lr: the best learning rate over seeds; ``None`` if no trial reached the target.
        at_grid_edge: whether it is the lowest or the highest that was tried.
        seeds, seeds_reached: number of seeds run at the best learning rate, and of those that reached the target.
        comparison: the comparison; ``None`` if it was not possible, with a note that says why.
        verdict: the verdict.
        notes: reasons and remarks.
        course: every step of one run, see :func:`course_of`.
    """

    answer: Answer = field(repr=False)
    schedule: str
    choice: str
    batch_size: int
    best_lr: float | None = None
    at_grid_edge: bool | None = None
    seeds: int = 0
    seeds_reached: int = 0
    comparison: ScheduleGain | None = field(default=None, repr=False)
    verdict: ScheduleStanding = ScheduleStanding.UNKNOWN
    notes: tuple[str, ...] = ()
    course: pd.DataFrame | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        gain = self.comparison or ScheduleGain(steps=UNKNOWN, examples=UNKNOWN)
        content: dict[str, Any] = {}
        for name in ("steps", "examples", "gamma", "steps_saved", "examples_saved"):
            content |= getattr(gain, name).named(name)
        for name in ("", "_saved"):
            content |= getattr(gain, f"seconds{name}").times(1 / HOUR).named(f"hours{name}")
        content |= {name: getattr(gain, name) for name in ("equal_examples", "equal_steps", "beats")}
        return self.answer.group.whose | {"target": self.answer.target.to_json()} | shown(self) | content


@dataclass(frozen=True, kw_only=True)
class Schedules(Findings):
    """Result of :func:`schedules`, with one entry per optimizer, target, schedule and first batch size; ``timing`` says
    how the hours were found, or why they are unknown."""

    entries: tuple[Judged, ...] = field(repr=False)
    timing: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"schedules": plain(self.entries)}


def schedules(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    throughput: Throughput | None = None,
    devices: int = 1,
) -> Schedules:
    """Compare every batch schedule of the results with the constant batch sizes of the same sweep.

    ``path``, ``config``, ``targets`` and ``metric`` are as for :func:`analysis.analyze`, including errors; it is a
    ``ResultsError`` if no trial has a batch schedule. The hours that a schedule saves are computed from ``throughput``
    on ``devices`` devices, or from the trials themselves if it is ``None``.
    """
    results = load(path, metric=metric)
    if not results.scheduled:
        raise ResultsError(
            f"no trial at {path} has a batch schedule; run the sweep again with --schedule (see cbs sweep --help)"
        )
    missing = ""
    if throughput is None:
        throughput, missing = trial_times(results)
    answers_of_all = answers(results, config, targets=targets, noise=False)
    notes = [note for note in results.notes if "with a batch schedule" not in note]
    entries = []
    for label, scheduled in zip(labels([each.choice for each in results.scheduled]), results.scheduled, strict=True):
        if scheduled.reference is None:
            notes.append(
                f"{len(scheduled.trials)} trials with {scheduled.choice} have no constant batch sizes with otherwise "
                "equal settings to compare with; also run the sweep without --schedule"
            )
            continue
        group = results.groups[scheduled.reference]
        about: dict[str, Any] = {"schedule": label, "choice": str(scheduled.choice)}
        times = factors = None
        if throughput is not None:
            times = partial(throughput.seconds_per_step, group.optimizer, devices=devices)
            factors = partial(throughput.drawn, group.optimizer, devices=devices, seed=config.seed)
        for answer in (each for each in answers_of_all if each.group is group):
            for size, part in scheduled.trials.groupby("batch_size", sort=True):
                entries.append(_judged(about | {"answer": answer, "batch_size": int(size)}, part, times, factors))
    if throughput is not None:
        optimizers = dict.fromkeys(entry.answer.group.optimizer for entry in entries)
        timing = [f"hours on {plural(devices, 'device')}: {throughput.statement}; {throughput.spread}"]
        timing += filter(None, dict.fromkeys(throughput.assumption(each, devices) for each in optimizers))
    else:
        timing = [f"hours are unknown: {missing}; give --throughput"]
    return Schedules(config=config, entries=tuple(entries), notes=tuple(notes), timing=tuple(timing))


StepTimes = Callable[[Array], Array]  # Function from batch sizes to seconds per step; NaN where unknown


def _judged(
    about: dict[str, Any], part: pd.DataFrame, times: StepTimes | None, factors: Callable[..., Array] | None
) -> Judged:
    answer: Answer = about["answer"]
    curves = part[["steps", "values"]].itertuples(index=False)
    crossed = [answer.target.crossing(list(steps), list(values)) for steps, values in curves]
    steps = np.array([np.nan if found is None else found for found in crossed])
    study = one_study(answer.group, about["batch_size"], part, answer.target, steps)
    recorded = {row: read_steps(Path(part.at[row, "folder"]) / "steps.parquet")[0] for row in part.index}
    row = _winner(study, recorded)
    if row is None:
        return Judged(**about, seeds=len(study.seeds), notes=("no trial reached the target",))
    hit, ran = np.isfinite(study.steps[row]), np.isin(study.status[row], NOT_RUN, invert=True)
    runs = [
        _run(float(study.steps[row, seed]), recorded[int(study.trials[row, seed])], times)
        for seed in np.flatnonzero(hit)
    ]
    reached, seeds, edge = int(hit.sum()), int(ran.sum()), study.at_edge(row)
    course = course_of(part.loc[int(study.trials[row, np.flatnonzero(hit)[0]])], recorded)
    about |= {
        "best_lr": float(study.lrs[row]), "at_grid_edge": edge, "seeds": seeds, "seeds_reached": reached,
        "course": course,
    }  # fmt: skip
    if answer.draws is None or answer.hyperbola is None:
        return Judged(**about, notes=("the constant batch sizes have no curve: " + answer.advice,))
    low, high = answer.exponent.interval
    hyperbola = (low is None or low <= 1.0) and (high is None or high >= 1.0)
    comparison = compare(
        answer.draws,
        runs,
        answer.confidence,
        hyperbola=answer.hyperbola.curve if hyperbola else None,
        step_times=times,
        step_factors=factors,
        seed=answer.config.seed,
    )
    unchanged = sum(not run.changed for run in runs)
    where = "" if unchanged == len(runs) else f" in {unchanged} of {len(runs)} seeds"
    against = [*_against(answer, comparison, edge, reached, seeds)]
    against += [f"the target was reached before the batch size changed{where}"] if unchanged else []
    remarks = _remarks(comparison, times is not None, hyperbola)
    verdict = ScheduleStanding.UNKNOWN if against else _standing(comparison.steps_saved)
    return Judged(**about, comparison=comparison, verdict=verdict, notes=(*against, *remarks))


def _winner(study: Study, recorded: dict[int, dict[str, np.ndarray]]) -> int | None:
    """Return the row of the best learning rate.

    Under a rule that reacts to the run, fewer steps may cost more examples, so the geometric mean of both counts; for a
    fixed table of stages, and for constant batch sizes, this is the same choice.
    """
    cost = np.full_like(study.steps, np.nan)
    for cell in zip(*np.nonzero(np.isfinite(study.steps)), strict=True):
        run = _run(float(study.steps[cell]), recorded[int(study.trials[cell])])
        cost[cell] = np.sqrt(run.steps * run.examples)
    return best_lr(cost, study.ran)


def _run(steps: float, recorded: dict[str, np.ndarray], times: StepTimes | None = None) -> ScheduledRun:
    last = min(len(recorded["examples"]), max(1, int(np.ceil(steps))))
    seconds = np.nan
    if times is not None:
        sizes, counts = np.unique(recorded["batch_size"][:last], return_counts=True)
        each = times(sizes)
        over = (last - steps) * each[sizes == recorded["batch_size"][last - 1]]
        seconds = float(counts @ each - over[0])
    return ScheduledRun(
        steps=steps,
        examples=examples_at(steps, recorded["examples"]),
        batch_size=float(recorded["batch_size"][last - 1]),
        changed=len(np.unique(recorded["batch_size"][:last])) > 1,
        seconds=seconds,
    )


def _against(answer: Answer, gain: ScheduleGain, edge: bool, reached: int, seeds: int) -> Iterator[str]:
    """Yield what prevents a verdict."""
    if answer.verdict is not Verdict.OK:
        yield f"the curve of constant batch sizes: {answer.verdict}"
    if edge:
        yield "the best learning rate of the schedule is at the edge of the grid"
    if reached < seeds:
        yield f"{reached} of {seeds} seeds reached the target, so the means are only over the fast ones"
    elif seeds < FEWEST_SEEDS:
        yield "the schedule was run with one seed only"
    assert answer.draws is not None
    low, high = answer.draws.batch_sizes[[0, -1]]
    for words, size in (("examples", gain.equal_examples), ("steps", gain.equal_steps)):
        if size is not None and not low <= size <= high:
            yield (
                f"the constant batch size with as many {words}, {size:.3g}, is not among those measured "
                f"({low:g} to {high:g})"
            )


def _remarks(gain: ScheduleGain, timed: bool, hyperbola: bool) -> Iterator[str]:
    """Yield what is unknown beside a verdict."""
    if gain.equal_examples is None:
        yield "no constant batch size near the measured ones takes as many examples"
    if gain.equal_steps is None:
        yield "no constant batch size near the measured ones takes as many steps"
    if timed and gain.seconds.value is None:
        yield "a batch size of the schedule has no step time, so there are no hours"
    elif timed and gain.seconds_saved.value is None and gain.equal_examples is not None:
        yield f"no step time at batch size {gain.equal_examples:.3g}, so no hours saved"
    if not hyperbola:
        yield "the curve of constant batch sizes is not a hyperbola, so gamma is meaningless"


def _standing(saved: Quantity) -> ScheduleStanding:
    low, high = saved.interval
    if low is not None and low > 0:
        return ScheduleStanding.BETTER
    if high is not None and high < 0:
        return ScheduleStanding.WORSE
    return ScheduleStanding.ALIKE if low is not None and high is not None else ScheduleStanding.UNKNOWN


def course_of(trial: pd.Series, recorded: dict[int, dict[str, np.ndarray]]) -> pd.DataFrame:
    """Return every step of one run: ``step, examples, batch_size``, the learning rate ``lr``, and the metric as
    ``value`` where it was evaluated.

    Learning rates are stored at evaluations; in between, that of the schedule is interpolated linearly in examples,
    times the factor of the batch schedule at each step.
    """
    columns = recorded[int(trial.name)]
    course = pd.DataFrame({name: columns[name] for name in ("step", "examples", "batch_size")})
    at, values, lrs = (np.asarray(trial[name]) for name in ("steps", "values", "lrs"))
    course["value"] = course["step"].map(pd.Series(values[at > 0], index=at[at > 0]))
    seen = at[(at > 0) & (at <= len(course))] - 1
    scheduled = lrs[(at > 0) & (at <= len(course))] / columns["lr_factor"][seen]
    course["lr"] = columns["lr_factor"] * np.interp(course["examples"], course["examples"].iloc[seen], scheduled)
    return course
