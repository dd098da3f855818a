"""From one run and its facts to the record of a trial, including the cleaning of its curve."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.quantities import Array
from analysis.read.importers.base import ImportedRun
from analysis.read.importers.epochs import updates
from analysis.read.importers.settings import Settings
from cbs.errors import DataError
from cbs.trial.config import OF_TRAINER, Choice, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus, WorkloadInfo

ENDED_EARLY = (TrialStatus.DIVERGED, TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.PRUNED)
"""Statuses that a source may give to a run that has no evaluation, or whose curve does not show how it ended."""

# Largest relative move of a point on its axis when examples or tokens are converted to whole steps; smaller than the
# spacing of evaluations every 4 %.
ROUNDING = 0.01

_EXACT = 1e-9  # Relative; what is nearer to a whole number is one
_FEW = 0.1  # Largest fraction of the rows of a run at which a counter may start again
_NEAR = 0.25  # Fraction of the change since a step within which a value is that of the later one
_RESTORED = 0.25  # The same where it goes back to steps that it had, and not to the first


def trial(run: ImportedRun, facts: Mapping[str, Any], settings: Settings) -> tuple[TrialResult, Counter[str]]:
    """Return the record of a run, in which what is no fact is stored as unknown, and what :func:`clean` did.

    A curve without a point after step 0 is refused, unless the status of the run says that it ended early.
    """
    exact, values, cleaning = clean(run, facts["batch_size"], settings)
    steps = [int(step) for step in exact]
    last = steps[-1] if steps else 0
    if last < 1 and facts["status"] not in ENDED_EARLY:
        raise DataError(
            f"run {run.name} ({run.place}) has no value of {settings.metric!r} after step 0; leave it out, or give it "
            "the status FAILED"
        )
    target = settings.as_target()
    crossing = target.crossing(steps, values.tolist())
    status = facts["status"]
    if status not in ENDED_EARLY:
        past = TrialStatus.BUDGET_EXHAUSTED if crossing is None else TrialStatus.REACHED
        status = past if math.isfinite(values[-1]) else TrialStatus.DIVERGED
    config = TrialConfig(
        workload=Choice(name=facts["workload"]),
        optimizer=Choice(name=facts["optimizer"]),
        **{name: facts[name] for name in ("lr", "batch_size", "seed")},
        target=target,
        max_steps=max(last, run.max_steps or 1),
        probe=None,
        unknown=OF_TRAINER,
    )
    result = TrialResult(
        config=config,
        status=status,
        steps_to_target=crossing if status is TrialStatus.REACHED else None,
        evaluations=measurements(config, steps, values),
        steps=no_steps(),
        workload=WorkloadInfo(**settings.units, parameters=facts["parameters"], data_hash=None),
        message=f"imported from run {run.name}",
    )
    return result, cleaning


def measurements(config: TrialConfig, steps: Sequence[int], values: Iterable[float]) -> list[Measurement]:
    """Return the evaluations of a curve that another program logged, which has no training loss."""
    return [
        Measurement(
            step=step,
            examples=step * config.batch_size,
            value=float(value),
            train_loss=math.nan,
            lr=config.lr if step else 0.0,
        )
        for step, value in zip(steps, values, strict=True)
    ]


def no_steps() -> dict[str, Array]:
    """Return the per-step columns of a trial without any known step."""
    return {"step": np.empty(0, np.int64), "examples": np.empty(0, np.int64), "train_loss": np.empty(0)}


def clean(run: ImportedRun, batch_size: int, settings: Settings) -> tuple[Array, Array, Counter[str]]:
    """Return the curve of a run, with steps in order, each once, and counts of what was changed: points that are
    ``duplicates`` of another one, ``rounded`` to the nearest whole step, or ``undone`` because training was
    ``restored`` at an earlier step, and whether the curve ``restarted``. A step that is not whole, or has two different
    values otherwise, is refused.
    """
    steps, rounded = _steps(run, batch_size, settings)
    if np.all(np.diff(steps) > 0):  # as nearly all do; a table of pandas for each run takes ten times as long
        return steps, np.asarray(run.values, dtype=float), Counter(rounded=rounded)
    points = pd.DataFrame({"step": steps, "value": np.asarray(run.values, dtype=float)})
    distinct = points.drop_duplicates(ignore_index=True)
    standing = _standing(distinct["step"].to_numpy())
    if not standing.all() and (at := _counted_anew(*distinct.to_numpy().T)):
        end, begin = distinct["step"][at - 1 : at + 1]
        raise DataError(
            f"run {run.name} ({run.place}) goes back from step {end:g} to {begin:g} with the value that it had at "
            f"{end:g}, so it began anew where training was resumed: add the steps made before, or remove a part"
        )
    once = distinct[standing].sort_values("step", kind="stable")
    undone = len(distinct) - len(once)
    twice = once["step"].duplicated(keep=False)
    if twice.any():
        step, values = once["step"][twice].iloc[0], once["value"][twice].to_list()
        raise DataError(
            f"run {run.name} ({run.place}) has two values at step {int(step)}: {values[0]:g} and {values[1]:g}; remove "
            "one, or distinguish the runs if these are two"
        )
    counts = Counter(
        duplicates=len(points) - len(distinct),
        rounded=rounded,
        restarted=int(not undone and _restarted(steps)),
        undone=undone,
        restored=int(undone > 0),
    )
    return once["step"].to_numpy(), once["value"].to_numpy(), counts


def _standing(steps: Array) -> np.ndarray:
    """Return a mask of the points that count where a run was restored from a checkpoint: those after which no row goes
    back to their step or before. All count if no step is repeated, if rows are in another order, or if the counter
    begins anew, in which case it may be another run."""
    back = np.diff(steps) < 0
    ordered = back.sum() <= _RESTORED * len(steps) and (np.diff(steps) != 0).all() and (steps[1:] > steps[:1]).all()
    if not ordered or len(np.unique(steps)) == len(steps):
        return np.ones(len(steps), dtype=bool)
    return np.asarray(steps < np.r_[np.minimum.accumulate(steps[:0:-1])[::-1], math.inf])


def _counted_anew(steps: Array, values: Array) -> int:
    """Return the first row that goes back to less than half of the steps with a value nearer that of the row before
    than what was measured at its step; 0 if there is none."""
    for at in 1 + np.flatnonzero(steps[1:] < steps[:-1] / 2):
        before = np.argsort(steps[:at], kind="stable")
        then = np.interp(steps[at], steps[before], values[before])
        if abs(values[at] - values[at - 1]) < _NEAR * abs(then - values[at - 1]):
            return int(at)
    return 0


def _restarted(steps: Array) -> bool:
    """Return whether steps increase except at a few places, after which some steps repeat earlier ones; rows in any
    other order do not come from a counter."""
    back = 1 + np.flatnonzero(np.diff(steps) < 0)
    parts = np.split(steps, back)
    again = any(later.max() > earlier.min() for earlier, later in itertools.pairwise(parts))
    return 0 < len(back) <= max(1.0, _FEW * len(steps)) and again


def _steps(run: ImportedRun, batch_size: int, settings: Settings) -> tuple[Array, int]:
    """Return the axis in optimizer updates, and how many points had to be moved to a whole update."""
    axis = np.asarray(run.axis, dtype=float)
    if run.unit == "tokens" and settings.tokens_per_example is None:
        raise DataError(f"run {run.name} is drawn against tokens: give --tokens-per-example N")
    if settings.examples_per_epoch is not None:
        return updates(run, batch_size, settings.examples_per_epoch), 0
    per = {"step": 1, "examples": batch_size, "tokens": batch_size * (settings.tokens_per_example or 1)}
    per_step = float(per[run.unit])
    exact = axis / per_step
    steps = np.round(exact)
    moved = np.abs(steps - exact)
    wrong = moved > (_EXACT if run.unit == "step" else ROUNDING) * exact
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        what = "step" if run.unit == "step" else f"{run.unit} at {per_step:g} per step"
        raise DataError(
            f"run {run.name} ({run.place}): {axis[at]:g} {what} is not a whole number of steps ({exact[at]:g}); "
            "check the batch size and the unit of the axis, or remove the row"
        )
    return steps, int((moved > _EXACT * exact).sum())
