"""Run the branches of a checkpoint one after the other, as a sequential test of their losses requests them."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from analysis.estimate.branch_test import BranchState, next_branches
from analysis.estimate.branches import BranchLosses
from cbs.trial.record import TrialResult, TrialStatus, end_mean
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep


@dataclass(frozen=True, kw_only=True)
class TestedCheckpoint:
    """Result of the sequential test for one optimizer at one checkpoint.

    Attributes:
        optimizer: label of the optimizer.
        examples: number of examples that the trunk had seen at the checkpoint.
        recovered: the largest factor k that has recovered; the smallest one has by definition.
        lost: the smallest factor above it that has lost; ``None`` if none has.
        untold: factors between the two that more seeds would hardly decide.
        branches: number of branches that ran.
        done: whether the test has ended; false if a branch failed or a limit was reached before.
        losses: losses of all branches.
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
        """Guess of k*: the geometric mean of ``recovered`` and ``lost``, or ``recovered`` if none has lost."""
        return math.sqrt(self.recovered * (self.lost or self.recovered))

    def to_json(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer, "at": self.examples, "branches": self.branches, "done": self.done,
            "between": [float(self.recovered), None if self.lost is None else float(self.lost)],
            "untold": [float(k) for k in self.untold],
        }  # fmt: skip

    def line(self, smallest: Fraction) -> str:
        """Return the result as a line of text; ``smallest`` is the smallest factor of all."""
        where = f"between {self.recovered} and {self.lost}"
        if self.lost is None and self.recovered == smallest:
            where = "not known"
        elif self.lost is None:
            where = f"above {self.recovered}"
        elif self.recovered == smallest:
            where = f"below {self.lost}"
        unclear = f", {', '.join(map(str, self.untold))} cannot be told" if self.untold else ""
        stopped = "" if self.done else ", test not ended"
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
    """Yield the branches to run next as a sweep, until k* is bracketed; return the result of the test.

    Args:
        every: all branches of one optimizer at one checkpoint.
        folder: folder of the branches.
        factors: factor k by batch size, increasing.
        within: excess loss up to which a branch has not lost, in the unit of the metric.
        error: see :func:`analysis.estimate.branch_test.next_branches`.
        earlier: results at earlier checkpoints of the same run.
        limits: limits after which nothing more is yielded.
        searches: list to which every search that is sent back is added.
    """
    sizes, places = list(factors), np.array([float(k) for k in factors.values()])
    losses = np.full((len(every.axes.seeds), len(sizes)), np.nan)
    while True:
        answer = next_branches(
            BranchLosses(places, losses), within, error=error, most_seeds=len(every.axes.seeds),
            guess=earlier[-1].guess if earlier else 1.0, earlier=[each.losses for each in earlier],
        )  # fmt: skip
        if not answer.run:
            break
        wanted, seed = tuple(sizes[place] for place in answer.run), every.axes.seeds[answer.seed]
        searches.append((yield every.replace(batch_sizes=wanted, seeds=(seed,)), folder))
        for trial in searches[-1].trials():
            losses[answer.seed, sizes.index(trial.config.batch_size)] = _loss(trial)
        if limits.reached or np.isnan(losses[answer.seed, list(answer.run)]).any():
            break
    assert every.start.parent is not None
    (label,) = every.axes.labels.values()
    named = dict(zip(places.tolist(), factors.values(), strict=True))
    low, high = answer.between
    untold = [k for k, state in zip(factors.values(), answer.states, strict=True) if state is BranchState.UNTOLD]
    return TestedCheckpoint(
        optimizer=label, examples=every.start.parent.examples, recovered=named[low],
        lost=None if high is None else named[high], branches=int((~np.isnan(losses)).sum()), done=not answer.run,
        untold=tuple(k for k in untold if low < k < (high or math.inf)), losses=BranchLosses(places, losses),
    )  # fmt: skip


def _loss(trial: TrialResult) -> float:
    """Return the mean loss over the last quarter of the window, lower is better; infinity if the branch diverged, NaN
    if it did not train to the end for another reason."""
    if trial.status is TrialStatus.DIVERGED:
        return math.inf
    if trial.status is not TrialStatus.BUDGET_EXHAUSTED:
        return math.nan
    target = trial.config.target
    assert target is not None
    rows = np.array([(row.examples, row.value) for row in trial.evaluations], dtype=float)
    return (1.0 if target.direction == "below" else -1.0) * end_mean(
        rows[:, 0], rows[:, 1], end=trial.config.max_examples
    )
