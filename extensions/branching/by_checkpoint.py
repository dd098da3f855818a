"""Which branches of a checkpoint run next, as a sequential test of the losses so far requests them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from cbs.trial.record import TrialResult, TrialStatus, end_mean
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:  # every sweep imports the policies; importing pandas and scipy takes a second
    from extensions.branching.factors import BranchLosses
    from extensions.branching.sequential import NextBranches


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


class CheckpointTest:
    """The test of one optimizer at one checkpoint, as far as it has come.

    Args:
        every: all branches of the optimizer at the checkpoint.
        factors: factor k by batch size, increasing.
        within: excess loss up to which a branch has not lost, in the unit of the metric.
        error: see :func:`extensions.branching.sequential.next_branches`.
        earlier: results at earlier checkpoints of the same run.
    """

    def __init__(
        self, every: Sweep, factors: Mapping[int, Fraction], *, within: float, error: float,
        earlier: Sequence[TestedCheckpoint],
    ) -> None:  # fmt: skip
        self._every, self._factors, self._within, self._error, self._earlier = every, factors, within, error, earlier
        self._places = np.array([float(k) for k in factors.values()])
        self._losses = np.full((len(every.axes.seeds), len(factors)), np.nan)
        self._failed = False

    def next(self) -> Sweep | None:
        """Return the branches to run next, or ``None`` if k* is bracketed or a branch has failed."""
        answer = self._answer()
        if self._failed or not answer.run:
            return None
        sizes = list(self._factors)
        wanted, seed = tuple(sizes[place] for place in answer.run), self._every.axes.seeds[answer.seed]
        return self._every.replace(batch_sizes=wanted, seeds=(seed,))

    def add(self, search: Search) -> None:
        """Read the losses of the branches that were to run next."""
        answer, sizes = self._answer(), list(self._factors)
        for trial in search.trials():
            self._losses[answer.seed, sizes.index(trial.config.batch_size)] = _loss(trial)
        self._failed = bool(np.isnan(self._losses[answer.seed, list(answer.run)]).any())

    def result(self) -> TestedCheckpoint:
        """Return what is known so far."""
        from extensions.branching.factors import BranchLosses
        from extensions.branching.sequential import BranchState

        assert self._every.start.parent is not None
        (label,), answer = self._every.axes.labels.values(), self._answer()
        named = dict(zip(self._places.tolist(), self._factors.values(), strict=True))
        low, high = answer.between
        states = zip(self._factors.values(), answer.states, strict=True)
        untold = [k for k, state in states if state is BranchState.UNTOLD]
        return TestedCheckpoint(
            optimizer=label, examples=self._every.start.parent.examples, recovered=named[low],
            lost=None if high is None else named[high], branches=int((~np.isnan(self._losses)).sum()),
            done=not (answer.run or self._failed),
            untold=tuple(k for k in untold if low < k < (high or math.inf)),
            losses=BranchLosses(self._places, self._losses),
        )  # fmt: skip

    def _answer(self) -> NextBranches:
        from extensions.branching.factors import BranchLosses
        from extensions.branching.sequential import next_branches

        earlier = self._earlier
        return next_branches(
            BranchLosses(self._places, self._losses), self._within, error=self._error,
            most_seeds=len(self._every.axes.seeds), guess=earlier[-1].guess if earlier else 1.0,
            earlier=[each.losses for each in earlier],
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
