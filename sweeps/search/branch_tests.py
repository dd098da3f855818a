"""Branches of a checkpoint one after the other, as a sequential test of their losses asks for them."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from analysis.estimate.branches.losses import BranchLosses
from analysis.estimate.branches.sequential import BranchState, next_branches
from cbs.trial.record import TrialResult, TrialStatus, end_mean
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep


@dataclass(frozen=True, kw_only=True)
class TestedCheckpoint:
    """What the test says of one optimizer at one checkpoint.

    Attributes:
        recovered: the largest k that has not lost; the smallest one has not by definition.
        lost: the smallest k above it that has; ``None`` where none has.
        untold: k between them of which more seeds would hardly say more.
        branches: that it took.
        done: whether it came to its end: no branch failed, and no limit came first.
    """

    optimizer: str
    examples: int
    recovered: Fraction
    lost: Fraction | None
    untold: tuple[Fraction, ...]
    branches: int
    done: bool
    losses: BranchLosses = field(repr=False)

    @property
    def guess(self) -> float:
        """The middle of where k* is."""
        return math.sqrt(self.recovered * (self.lost or self.recovered))

    def to_json(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer, "at": self.examples, "branches": self.branches, "done": self.done,
            "between": [float(self.recovered), None if self.lost is None else float(self.lost)],
            "untold": [float(k) for k in self.untold],
        }  # fmt: skip

    def line(self, smallest: Fraction) -> str:
        """For a person, where ``smallest`` is the least k there is."""
        where = f"between {self.recovered} and {self.lost}"
        if self.lost is None and self.recovered == smallest:
            where = "not known"
        elif self.lost is None:
            where = f"above {self.recovered}"
        elif self.recovered == smallest:
            where = f"below {self.lost}"
        unclear = f", {', '.join(map(str, self.untold))} cannot be told" if self.untold else ""
        stopped = "" if self.done else ", not at its end"
        return f"{self.optimizer} at {self.examples:,}: k* {where}{unclear} ({self.branches} branches{stopped})"


def tested(
    every: Sweep,
    folder: Path,
    factors: Mapping[int, Fraction],
    *,
    within: float,
    error: float,
    earlier: Sequence[TestedCheckpoint],
    limits: Limits,
    searches: list[Search],
) -> Generator[tuple[Sweep, Path], Search, TestedCheckpoint]:
    """Yield the branches to run next as a sweep, until k* is bracketed.

    Args:
        every: all branches of one optimizer at one checkpoint.
        folder: of them.
        factors: k by batch size, increasing.
        within: excess loss up to which a branch has not lost.
        error: see :func:`analysis.estimate.branches.sequential.next_branches`.
        earlier: checkpoints of the same run that were tested.
        limits: once one is reached nothing more is yielded.
        searches: each that is sent is added.
    """
    sizes, places = list(factors), np.array([float(k) for k in factors.values()])
    losses = np.full((len(every.seeds), len(sizes)), np.nan)
    while True:
        answer = next_branches(
            BranchLosses(places, losses), within, error=error, most_seeds=len(every.seeds),
            guess=earlier[-1].guess if earlier else 1.0, earlier=[each.losses for each in earlier],
        )  # fmt: skip
        if not answer.run:
            break
        wanted, seed = tuple(sizes[place] for place in answer.run), every.seeds[answer.seed]
        searches.append((yield every.replace(batch_sizes=wanted, seeds=(seed,)), folder))
        for trial in searches[-1].trials():
            losses[answer.seed, sizes.index(trial.config.batch_size)] = _loss(trial)
        if limits.reached or np.isnan(losses[answer.seed, list(answer.run)]).any():
            break
    assert every.parent is not None
    (label,) = every.labels.values()
    named = dict(zip(places.tolist(), factors.values(), strict=True))
    low, high = answer.between
    untold = [k for k, state in zip(factors.values(), answer.states, strict=True) if state is BranchState.UNTOLD]
    return TestedCheckpoint(
        optimizer=label, examples=every.parent.examples, recovered=named[low],
        lost=None if high is None else named[high], branches=int((~np.isnan(losses)).sum()), done=not answer.run,
        untold=tuple(k for k in untold if low < k < (high or math.inf)), losses=BranchLosses(places, losses),
    )  # fmt: skip


def _loss(trial: TrialResult) -> float:
    """Over the last quarter of its window, less is better; infinity if it diverged, NaN if it did not get there."""
    if trial.status is TrialStatus.DIVERGED:
        return math.inf
    if trial.status is not TrialStatus.BUDGET_EXHAUSTED:
        return math.nan
    target = trial.config.target
    assert target is not None
    rows = np.array([(row.examples, row.value) for row in trial.evaluations], dtype=float)
    return (1.0 if target.direction == "below" else -1.0) * end_mean(*rows.T, end=trial.config.max_examples)
