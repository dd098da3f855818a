"""From evaluation curves to one point per batch size: crossings, censoring, choice of the learning rate.

Nothing here depends on when a trial was stopped. Every crossing is found again on the stored curve, and where the sweep
pruned slow trials, a trial that happened to run on is censored at the same place as one that was stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.estimate.early_crossing import early_crossing
from analysis.plain import shown
from analysis.read.groups import Group
from cbs.registry.choices import parse_choice
from cbs.trial.lr_choice import at_edges, best_lr, censored
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target

STOPPED = "STOPPED_AT_OWN_TARGET"
"""Status at a target harder than the sweep's own: the trial stopped before it could reach it."""

_RAN = (TrialStatus.BUDGET_EXHAUSTED, TrialStatus.PRUNED, STOPPED)
_RANK = (*_RAN, TrialStatus.DIVERGED, TrialStatus.OUT_OF_MEMORY, TrialStatus.FAILED)

NOT_RUN = ("", TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)
"""Status of a trial that says nothing about its learning rate, and that a sweep runs (again)."""


FARTHEST = 1.6
"""Ratio of the steps of two evaluations up to which the steps between them are interpolated; beyond, nothing is known
in between."""


@dataclass(frozen=True)
class Study:
    """All trials of one group at one batch size, seen from one target.

    Attributes:
        batch_size: examples per step.
        lrs: learning rates, increasing, shape ``[L]``; one NaN where the trials do not say.
        seeds: shape ``[N]``.
        steps: steps to target, shape ``[L, N]``; NaN where it was not reached or no trial was run.
        status: how each trial ended with respect to the target, shape ``[L, N]``; empty where no trial was run.
        bound: steps run without reaching the target, shape ``[L, N]``; NaN where that means nothing.
        trials: row of the trial table, shape ``[L, N]``; -1 where no trial was run.
        resolution: steps by which ``steps`` may be too large, because nothing was measured in between, shape
            ``[L, N]``; 0 where they are interpolated.
        lead: by how many log steps noisy evaluations at the best learning rate are expected to pass the target before
            their trend does, see :func:`analysis.estimate.early_crossing.early_crossing`; the mean over its seeds. 0
            where evaluations have no noise of their own: a run that passes the target for a moment has reached it.
        warmup: steps of the learning rate's warmup.
        tuned: what else was tuned at every batch size, such as ``momentum=0.9``, shape ``[L]``: a row is then a
            learning rate with these options, and the winner is one of all of them. Empty where nothing was.
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

    @property
    def winner(self) -> int | None:
        """Row of the best learning rate, see :func:`cbs.trial.lr_choice.best_lr`."""
        return best_lr(self.steps, self.ran)

    @property
    def ran(self) -> np.ndarray:
        """Whether the trial was run, shape ``[L, N]``."""
        return np.asarray(self.status != "")

    @property
    def tried(self) -> np.ndarray:
        """Whether some trial of the learning rate ended as training went, not as a machine did, shape ``[L]``."""
        return np.asarray(np.isin(self.status, NOT_RUN, invert=True).any(axis=1))

    @property
    def along_lr(self) -> Study:
        """The trials that differ from the winner, from the first without one, in learning rate and seed alone."""
        return self.at(self.tuned == self.tuned[self.winner or 0]) if len(self.tuned) else self

    def at(self, rows: np.ndarray | slice, **changes: Any) -> Study:
        """Some of the rows, with the options that were tuned left out, and with ``changes``."""
        names = ("lrs", "steps", "status", "bound", "trials", "resolution")
        kept = {name: getattr(self, name)[rows] for name in names} | {"tuned": np.empty(0, dtype=object)}
        return replace(self, **kept | changes)

    def at_edge(self, row: int) -> bool:
        """Whether the learning rate of a row is the lowest or the highest of those that were tried with its options."""
        alike = self.tuned == self.tuned[row] if len(self.tuned) else np.ones(len(self.lrs), dtype=bool)
        return any(at_edges(int(alike[:row].sum()), self.tried[alike]))

    def edges_of_axes(self, row: int) -> tuple[str, ...]:
        """Options that were tuned of which the value of a row is the lowest or the highest that was tried; 0 is an end
        that nothing lies beyond."""
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
    """One batch size of a curve.

    Attributes:
        batch_size: examples per step.
        steps_to_target: geometric mean over the seeds that reached the target at the best learning rate.
        steps_per_seed: steps to target at the best learning rate, of the seeds that reached it.
        best_lr: the learning rate that wins over seeds.
        at_grid_edge: whether it is the lowest or the highest that was tried; ``None``, as ``best_lr``, where no trial
            reached the target or the trials do not say their learning rate.
        seeds: seeds that were run.
        seeds_reached: seeds that reached the target at the best learning rate.
        status: ``REACHED``, or how most trials ended when none reached the target.
        steps_lower_bound: when none reached the target, the most steps run without reaching it.
        trials: rows of the trial table behind ``steps_per_seed``.
        tuned: the options that won beside the learning rate, see :class:`Study`; empty where none were tuned.
        at_axis_edge: which of them are the lowest or the highest that was tried.
        resolution: the largest part of its steps by which those of a seed may be too large.
        lead, warmup: of the :class:`Study`.
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
    trials: tuple[int, ...] = field(default=(), repr=False)
    tuned: str = field(default="", repr=False)
    at_axis_edge: tuple[str, ...] = field(default=(), repr=False)
    resolution: float = field(default=0.0, repr=False)
    lead: float = field(default=0.0, repr=False)
    warmup: float = field(default=0.0, repr=False)

    @property
    def reached(self) -> bool:
        """Whether any trial at the best learning rate reached the target."""
        return self.steps_to_target is not None

    @property
    def examples_to_target(self) -> float | None:
        """``steps_to_target`` times the batch size, in examples."""
        return None if self.steps_to_target is None else self.steps_to_target * self.batch_size

    def to_json(self) -> dict[str, Any]:
        tuned = {"tuned": options_of(self.tuned), "at_axis_edge": list(self.at_axis_edge)} if self.tuned else {}
        return shown(self) | {"examples_to_target": self.examples_to_target} | tuned


def options_of(tuned: str) -> dict[str, Any]:
    """The options in the text that :attr:`Study.tuned` has of them."""
    return parse_choice(f"tuned({tuned})").options


def easier_or_equal(target: Target, own: Target) -> bool:
    """Whether trials that stopped at ``own`` have passed ``target`` on the way."""
    if (target.metric, target.direction) != (own.metric, own.direction):
        return False
    return target.value == own.value or target.reached(own.value)


def studies(
    group: Group, rows: pd.DataFrame, target: Target, steps: np.ndarray, apart: np.ndarray, evaluations: Sequence[Array]
) -> Iterator[Study]:
    """The studies of one group, whose trials are ``rows``, by increasing batch size.

    ``steps`` are those of all trials to ``target`` (:meth:`cbs.trial.target.Target.crossings`), ``apart`` the ratios of
    the steps around them (:meth:`cbs.trial.target.Target.apart`), ``evaluations`` the columns of
    :attr:`analysis.read.results.Results.evaluations`.
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
) -> Study:
    """The study of one batch size.

    ``part`` are its trials: columns ``lr``, ``seed``, ``status`` and ``final_step``; ``tuned`` where the group has any.
    ``steps`` are theirs to ``target``, NaN where it was not reached; they may be too large by ``resolution``.
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
    if about.beside and _cut_off(table, np.where(np.isin(status, (STOPPED, TrialStatus.PRUNED)), bound, np.nan)):
        status[np.isfinite(table)], table = STOPPED, np.full(table.shape, np.nan)
    hit = np.isfinite(table)
    status[hit], bound[hit] = str(TrialStatus.REACHED), np.nan
    return Study(batch_size, lrs, seeds, table, status, bound, trials, blur, tuned)


def _cut_off(table: np.ndarray, stopped: np.ndarray) -> bool:
    """Whether another learning rate might have won if its trials had gone on.

    ``table`` are steps to a target that did not end the trials, ``stopped`` those after which trials were ended for
    something else, both of shape ``[L, N]`` with NaN where that was not so.
    """
    winner = best_lr(table, np.isfinite(table) | np.isfinite(stopped))
    early = np.where(np.isfinite(table), np.nan, stopped)
    return winner is not None and bool((early < np.nanmax(table[winner])).any())


def point(study: Study) -> Point:
    """What one batch size contributes to the curve."""
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
    """The best value of the metric of every trial after step 0, shape ``[trials]``; NaN where there is none. Of
    :attr:`analysis.read.results.Results.evaluations`; ``direction`` is that of the target."""
    value = evaluations["value"].where((evaluations["step"] > 0) & np.isfinite(evaluations["value"]))
    best = value.groupby(evaluations["trial"]).agg("min" if direction == "below" else "max")
    return best.reindex(range(trials)).to_numpy()


def within_reach(rows: pd.DataFrame, best: np.ndarray, direction: str) -> float | None:
    """The hardest value of the metric that some trial reached at every batch size; ``None`` without evaluations.

    Step 0 does not count. Rounded to three digits towards the easier side. ``rows`` are the trials of one group,
    ``best`` the :func:`best_values` of all trials.
    """
    below = direction == "below"
    per_size = pd.Series(best[rows.index]).groupby(rows["batch_size"].to_numpy()).agg("min" if below else "max")
    if per_size.isna().any():
        return None
    hardest = float(per_size.max() if below else per_size.min())
    return None if hardest == 0 else easier_by_rounding(hardest, below, 3)


def easier_by_rounding(value: float, below: bool, digits: int) -> float:
    """The next easier value with so many digits, for a target that has to be passed ``below`` it, or above."""
    if value == 0:
        return 1e-12 if below else -1e-12
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    rounded = (math.floor(value / unit) + 1) * unit if below else (math.ceil(value / unit) - 1) * unit
    return float(f"{rounded:.6g}")
