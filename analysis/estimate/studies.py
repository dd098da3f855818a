"""From evaluation curves to one point per batch size: crossings, censoring, and the choice of the learning rate.

Nothing here depends on when a trial was stopped. Every crossing is computed again from the stored curve, and if the
sweep pruned slow trials, a trial that happened to run on is censored at the same point as one that was stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimate.early_crossing import early_crossing
from analysis.formatting import shown
from analysis.quantities import Array
from analysis.read.groups import Group
from cbs.registry.choices import parse_choice
from cbs.trial.lr_choice import at_edges, best_lr, censored, standings
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target

STOPPED = "STOPPED_AT_OWN_TARGET"
"""Status at a target harder than the sweep's own: the trial stopped before it could reach this one."""

_RAN = (TrialStatus.BUDGET_EXHAUSTED, TrialStatus.PRUNED, STOPPED)
_RANK = (*_RAN, TrialStatus.DIVERGED, TrialStatus.OUT_OF_MEMORY, TrialStatus.FAILED)

NOT_RUN = ("", TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)
"""Statuses that say nothing about the learning rate; a sweep runs such a trial (again)."""


CEILING = 0.9  # Share of its steps that a run may have needed less, above which they are a ceiling and no value

# Ratio of the steps of two evaluations up to which steps between them are interpolated; beyond, the crossing may lie
# anywhere between them.
FARTHEST = 1.6


@dataclass(frozen=True)
class Study:
    """All trials of one group at one batch size, with respect to one target.

    Attributes:
        batch_size: examples per step.
        lrs: learning rates, increasing, shape ``[L]``; a single NaN if the trials do not state them.
        seeds: seeds, shape ``[N]``.
        steps: steps to target, shape ``[L, N]``; NaN where it was not reached or no trial was run.
        status: how each trial ended with respect to the target, shape ``[L, N]``; empty where no trial was run.
        bound: steps run without reaching the target, shape ``[L, N]``; NaN where there is no such bound.
        trials: row of the trial table, shape ``[L, N]``; -1 where no trial was run.
        resolution: steps by which ``steps`` may be too large because nothing was measured in between, shape ``[L, N]``;
            0 where they are interpolated.
        lead: number of log steps by which noisy evaluations at the best learning rate are expected to cross the target
            before their trend does, see :func:`analysis.estimate.early_crossing.early_crossing`; mean over seeds. 0 if
            evaluations have no noise of their own, since a run that crosses the target for a moment has reached it.
        warmup: number of warmup steps of the learning rate.
        interpolated: whether steps are interpolated between evaluations, or those of the later one.
        tuned: other options tuned at every batch size, such as ``momentum=0.9``, shape ``[L]``: a row is then a
            learning rate with these options, and the winner is one among all rows. Empty if there are none.
    """

    batch_size: int
    lrs: np.ndarray
    seeds: np.ndarray
    steps: np.ndarray
    status: np.ndarray
    bound: np.ndarray
    trials: np.ndarray
    resolution: np.ndarray
    tuned: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))
    lead: float = 0.0
    warmup: float = 0.0
    interpolated: bool = True

    @property
    def winner(self) -> int | None:
        """Row of the best learning rate, see :func:`cbs.trial.lr_choice.best_lr`."""
        return best_lr(self.steps, self.ran)

    @property
    def past(self) -> np.ndarray:
        """Whether each trial was past the target when it was first evaluated, so that its steps are a bound from above,
        ``[L, N]``."""
        return np.isfinite(self.steps) & (self.resolution > CEILING * np.nan_to_num(self.steps))

    @property
    def unranked(self) -> bool:
        """Whether another row may be better than the winner, because its trials were past the target that early."""
        winner, past = self.winner, self.past
        if winner is None or not past.any():
            return False
        failed = standings(self.steps[None], self.ran[None])[0][0]
        earliest = np.where(past, self.steps - self.resolution, np.inf).min(axis=1)
        rivals = (failed <= failed[winner]) & (earliest < np.nanmax(self.steps[winner]))
        return bool(np.delete(rivals, winner).any())

    @property
    def bounded(self) -> bool:
        """Whether the steps at the best learning rate are known from above alone."""
        return self.unranked or (self.winner is not None and not self.measured[self.winner].any())

    @property
    def measured(self) -> np.ndarray:
        """Whether the steps of each trial are a measurement, ``[L, N]``."""
        return np.isfinite(self.steps) & ~self.past

    @property
    def ran(self) -> np.ndarray:
        """Whether each trial was run, shape ``[L, N]``."""
        return np.asarray(self.status != "")

    @property
    def tried(self) -> np.ndarray:
        """Whether any trial of the learning rate gives information about training, not only about the machine,
        ``[L]``."""
        return np.asarray(np.isin(self.status, NOT_RUN, invert=True).any(axis=1))

    @property
    def along_lr(self) -> Study:
        """The trials that differ from the winner (or from the first row) only in learning rate and seed."""
        return self.at(self.tuned == self.tuned[self.winner or 0]) if len(self.tuned) else self

    def at(self, rows: np.ndarray | slice, **changes: Any) -> Study:
        """Return some of the rows, without tuned options, and with ``changes``."""
        names = ("lrs", "steps", "status", "bound", "trials", "resolution")
        kept = {name: getattr(self, name)[rows] for name in names} | {"tuned": np.empty(0, dtype=object)}
        return replace(self, **kept | changes)

    def at_edge(self, row: int) -> bool:
        """Return whether the learning rate of a row is the lowest or highest that was tried with the same options."""
        alike = self.tuned == self.tuned[row] if len(self.tuned) else np.ones(len(self.lrs), dtype=bool)
        return any(at_edges(int(alike[:row].sum()), self.tried[alike]))

    def edges_of_axes(self, row: int) -> tuple[str, ...]:
        """Return the tuned options whose value in a row is the lowest or the highest tried; 0 is not reported, because
        nothing lies beyond it."""
        if not len(self.tuned):
            return ()
        options = [options_of(text) for text, tried in zip(self.tuned, self.tried, strict=True) if tried]
        edges = []
        for name, mine in options_of(self.tuned[row]).items():
            values = [value for each in options if isinstance(value := each.get(name), int | float)]
            numeric = isinstance(mine, int | float) and not isinstance(mine, bool)
            if numeric and mine in (min(values), max(values)) and mine != 0:
                edges.append(name)
        return tuple(edges)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One batch size of a curve of steps to target.

    Attributes:
        batch_size: examples per step.
        steps_to_target: geometric mean over the seeds that reached the target at the best learning rate; ``None`` where
            that is only known to be at most ``steps_upper_bound``.
        steps_per_seed: steps to target at the best learning rate, of the seeds that reached it.
        best_lr: the best learning rate over all seeds.
        at_grid_edge: whether it is the lowest or the highest tried; ``None``, like ``best_lr``, if no trial reached the
            target, the trials do not state their learning rate, or several were past the target when first evaluated.
        seeds: number of seeds that were run.
        seeds_reached: number of seeds that reached the target at the best learning rate.
        status: ``REACHED``, or how most trials ended if none reached the target.
        steps_lower_bound: if none reached the target, the most steps run without reaching it.
        steps_upper_bound: the most steps of a seed until the first evaluation, if runs were past the target there.
        trials: rows of the trial table behind ``steps_per_seed``.
        tuned: the best tuned options, see :class:`Study`; empty if none were tuned.
        at_axis_edge: which of these are the lowest or the highest tried.
        resolution: largest fraction by which the steps of a seed may be too large.
        lead, warmup: as in :class:`Study`.
    """

    batch_size: int
    steps_to_target: float | None
    steps_per_seed: tuple[float, ...] = ()
    best_lr: float | None = None
    at_grid_edge: bool | None = None
    seeds: int
    seeds_reached: int = 0
    status: str
    steps_lower_bound: float | None = None
    steps_upper_bound: float | None = None
    trials: tuple[int, ...] = field(default=(), repr=False)
    tuned: str = field(default="", repr=False)
    at_axis_edge: tuple[str, ...] = field(default=(), repr=False)
    resolution: float = field(default=0.0, repr=False)
    lead: float = field(default=0.0, repr=False)
    warmup: float = field(default=0.0, repr=False)

    @property
    def at_an_edge(self) -> bool:
        """Whether the learning rate, or an option tuned with it, is the lowest or the highest that was tried."""
        return self.at_grid_edge or bool(self.at_axis_edge)

    @property
    def reached(self) -> bool:
        """Whether any trial at the best learning rate reached the target between two evaluations."""
        return self.steps_to_target is not None

    @property
    def bounded(self) -> bool:
        """Whether the steps are only known to be at most ``steps_upper_bound``."""
        return self.steps_upper_bound is not None

    @property
    def examples_to_target(self) -> float | None:
        """``steps_to_target`` times the batch size, in examples."""
        return None if self.steps_to_target is None else self.steps_to_target * self.batch_size

    def to_json(self) -> dict[str, Any]:
        tuned = {"tuned": options_of(self.tuned), "at_axis_edge": list(self.at_axis_edge)} if self.tuned else {}
        return shown(self) | {"examples_to_target": self.examples_to_target} | tuned


def options_of(tuned: str) -> dict[str, Any]:
    """Parse the text of tuned options in :attr:`Study.tuned`."""
    return parse_choice(f"tuned({tuned})").options


def easier_or_equal(target: Target, own: Target) -> bool:
    """Return whether trials that stopped at ``own`` have passed ``target`` on the way."""
    if (target.metric, target.direction) != (own.metric, own.direction):
        return False
    return target.value == own.value or target.reached(own.value)


def studies(
    group: Group, rows: pd.DataFrame, target: Target, steps: np.ndarray, apart: np.ndarray, evaluations: Sequence[Array]
) -> Iterator[Study]:
    """Yield the studies of one group, whose trials are ``rows``, in order of increasing batch size.

    ``steps`` are the steps of all trials to ``target`` (:meth:`cbs.trial.target.Target.crossings`), ``apart`` the
    ratios of the steps of the evaluations around them (:meth:`cbs.trial.target.Target.apart`), and ``evaluations`` the
    columns of :attr:`analysis.read.results.Results.evaluations`.
    """
    trial, at, values = evaluations
    unseen = np.where(apart > FARTHEST, steps * (1 - 1 / apart), 0.0)
    for size, part in rows.groupby("batch_size", sort=True):
        study = one_study(group, int(size), part, target, steps[part.index], unseen[part.index])
        leads = []
        known = group.evaluated or study.winner is None
        for row in () if known else study.trials[study.winner][np.isfinite(study.steps[study.winner])]:
            first, last = np.searchsorted(trial, (row, row + 1))
            leads.append(early_crossing(at[first:last], values[first:last], steps[row]))
        led = float(np.mean(leads)) if leads else 0.0
        yield replace(study, lead=led, warmup=float(part["warmup_steps"].max()))


def one_study(
    about: Group,
    batch_size: int,
    part: pd.DataFrame,
    target: Target,
    steps: np.ndarray,
    resolution: np.ndarray | float = 0.0,
    *,
    interpolated: bool = True,
) -> Study:
    """Return the study of one batch size.

    ``part`` are its trials, with columns ``lr``, ``seed``, ``status`` and ``final_step``, and ``tuned`` if the group
    has tuned options. ``steps`` are their steps to ``target``, NaN if it was not reached; they may be too large by
    ``resolution``.
    """
    lrs, row = np.unique(part["lr"].to_numpy(dtype=float), return_inverse=True)
    tuned = np.empty(0, dtype=object)
    if about.tuned:
        options, which = np.unique(part["tuned"].to_numpy(dtype=object), return_inverse=True)
        pairs, row = np.unique(which * len(lrs) + row, return_inverse=True)
        tuned, lrs = options[pairs // len(lrs)], lrs[pairs % len(lrs)]
    seeds, column = np.unique(part["seed"].to_numpy(), return_inverse=True)

    def in_grid(values: Any, empty: Any) -> np.ndarray:
        grid = np.full((len(lrs), len(seeds)), empty)
        grid[row, column] = values
        return grid

    known = about.beside or easier_or_equal(target, about.target) or not about.stops_at_target
    after = STOPPED if about.stops_at_target else str(TrialStatus.BUDGET_EXHAUSTED)
    ended = np.array([after if s == TrialStatus.REACHED else str(s) for s in part["status"]], dtype=object)
    table = in_grid(steps if known else np.nan, np.nan)
    bound = in_grid(np.where(np.isin(ended, _RAN), part["final_step"], np.nan), np.nan)
    status, trials, blur = in_grid(ended, np.array("", dtype=object)), in_grid(part.index, -1), in_grid(resolution, 0.0)
    if about.prune_factor is not None:
        limit = about.prune_factor * np.min(np.where(np.isfinite(table), table, np.inf), axis=0)
        limit = np.broadcast_to(limit, table.shape)
        kept = censored(table, about.prune_factor)
        late = np.isfinite(table) & ~np.isfinite(kept)
        late |= (status == TrialStatus.PRUNED) & ~np.isfinite(kept) & np.isfinite(limit)
        table = kept
        status[late], bound[late] = str(TrialStatus.PRUNED), limit[late]
    # another learning rate might have won if its trials, which ended for another reason, had continued
    stopped = np.where(np.isin(status, (STOPPED, TrialStatus.PRUNED)), bound, np.nan)
    leader = best_lr(table, np.isfinite(table) | np.isfinite(stopped)) if about.beside else None
    early = np.where(np.isfinite(table), np.nan, stopped)
    if leader is not None and bool((early < np.nanmax(table[leader])).any()):
        status[np.isfinite(table)], table = STOPPED, np.full(table.shape, np.nan)
    hit = np.isfinite(table)
    status[hit], bound[hit] = str(TrialStatus.REACHED), np.nan
    return Study(batch_size, lrs, seeds, table, status, bound, trials, blur, tuned, interpolated=interpolated)


def point(study: Study) -> Point:
    """Summarise one batch size as a point of the curve."""
    winner = study.winner
    seeds = len(study.seeds)
    if winner is None:
        counts = Counter(status for status in study.status.ravel() if status)
        return Point(
            batch_size=study.batch_size,
            steps_to_target=None,
            seeds=seeds,
            status=max(counts, key=lambda status: (counts[status], -_RANK.index(status))),
            steps_lower_bound=None if np.isnan(study.bound).all() else float(np.nanmax(study.bound)),
        )
    named = bool(np.isfinite(study.lrs).all())
    hit = np.isfinite(study.steps[winner])
    steps = study.steps[winner][hit]
    if study.bounded:
        sure = named and not study.unranked
        return Point(
            batch_size=study.batch_size,
            steps_to_target=None,
            best_lr=float(study.lrs[winner]) if sure else None,
            at_grid_edge=study.at_edge(winner) if sure else None,
            seeds=seeds,
            seeds_reached=int(hit.sum()),
            status=str(TrialStatus.REACHED),
            steps_upper_bound=float(steps.max()),
            resolution=1.0,
        )
    return Point(
        batch_size=study.batch_size,
        steps_to_target=math.exp(np.log(steps).mean()),
        steps_per_seed=tuple(steps.tolist()),
        best_lr=float(study.lrs[winner]) if named else None,
        at_grid_edge=study.at_edge(winner) if named else None,
        seeds=seeds,
        seeds_reached=int(hit.sum()),
        status=str(TrialStatus.REACHED),
        trials=tuple(study.trials[winner][hit].tolist()),
        tuned=str(study.tuned[winner]) if len(study.tuned) else "",
        at_axis_edge=study.edges_of_axes(winner),
        resolution=float((study.resolution[winner][hit] / steps).max()),
        lead=study.lead,
        warmup=study.warmup,
    )


def best_values(evaluations: pd.DataFrame, trials: int, direction: str) -> np.ndarray:
    """Return the best value of the metric of every trial after step 0, shape ``[trials]``; NaN if there is none.

    ``evaluations`` are :attr:`analysis.read.results.Results.evaluations`; ``direction`` is that of the target.
    """
    value = evaluations["value"].where((evaluations["step"] > 0) & np.isfinite(evaluations["value"]))
    best = value.groupby(evaluations["trial"]).agg("min" if direction == "below" else "max")
    return best.reindex(range(trials)).to_numpy()


def within_reach(rows: pd.DataFrame, best: np.ndarray, direction: str) -> float | None:
    """Return the hardest value of the metric that some trial reached at every batch size; ``None`` without evaluations.

    Step 0 does not count. The value is rounded to three digits towards the easier side. ``rows`` are the trials of one
    group, ``best`` the :func:`best_values` of all trials.
    """
    below = direction == "below"
    per_size = pd.Series(best[rows.index]).groupby(rows["batch_size"].to_numpy()).agg("min" if below else "max")
    if per_size.isna().any():
        return None
    hardest = float(per_size.max() if below else per_size.min())
    return None if hardest == 0 else easier_by_rounding(hardest, below, 3)


def easier_by_rounding(value: float, below: bool, digits: int) -> float:
    """Return the next easier value with ``digits`` digits for a target that is passed below it (or above)."""
    if value == 0:
        return 1e-12 if below else -1e-12  # 0 has no digits to round; far below what a metric shows
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    rounded = (math.floor(value / unit) + 1) * unit if below else (math.ceil(value / unit) - 1) * unit
    return float(f"{rounded:.6g}")
