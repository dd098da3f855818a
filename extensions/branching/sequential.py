r"""Group-sequential search for k*: which branches of a checkpoint to run next, and when enough were run.

A factor has recovered once its loss is shown to be at most the tolerance above that of the smallest factor, and is lost
once it is shown to be more than the tolerance above it, both by t tests on paired differences. The smallest factor
stands for the best smaller one: if losses first fall with the factor, the search is slightly too generous, but the
estimate afterwards is not. A factor is tested again after every further seed; test n of at most N spends on each side
:math:`\alpha(n/N) - \alpha((n-1)/N)` of the error with :math:`\alpha(t) = \alpha \ln(1 + (e - 1) t)` (Lan and DeMets,
"Discrete sequential boundaries for clinical trials", Biometrika 1983, the function that approximates Pocock's). The
errors of the tests are added up instead of integrated, so that the total holds whatever their dependence.

A factor close to k* would take the most seeds, so factors on both sides of it are tested, and the search ends when one
has recovered and one is lost that are near enough to each other.

The variance of a difference is pooled over all factors and checkpoints that two or more seeds ran, so that one seed of
a factor may be enough. If a factor scatters far more than all others, only its own noise is used for it. The
variance by the models of :mod:`analysis.estimate.seeds`, which also spend degrees of freedom on what all branches of a
seed share, would take a sixth more branches for the same decisions.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.special import fdtrc, stdtrit

from analysis.quantities import Array
from cbs.trial.record import TrialResult, TrialStatus
from extensions.branching.factors import BranchLosses, end_mean
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep

MOST_SEEDS = 5  # Default limit of the seeds of one factor
_UNLIKE = 0.01  # Level of the F test for a factor that scatters more than all others
_NEAR = 4.0  # Largest ratio of a lost factor to a recovered one at which the two are near enough to end the search


class BranchState(StrEnum):
    """State of the test of a factor."""

    RECOVERED = "recovered"
    LOST = "lost"
    OPEN = "open"
    """Another seed may decide."""
    UNTOLD = "cannot be told"
    """All seeds that are allowed did not decide, or would probably not: k* is near this factor."""


@dataclass(frozen=True, kw_only=True)
class NextBranches:
    """Result of :func:`next_branches`.

    Attributes:
        run: indices of the factors to run next, at most two; empty when the search has ended.
        seed: index of their seed, from 0.
        states: state of every factor.
        between: the largest factor that has recovered, and the smallest one above it that is lost (``None`` if there is
            none): the interval of k* once the search has ended.
    """

    run: tuple[int, ...] = ()
    seed: int = 0
    states: tuple[BranchState, ...]
    between: tuple[float, float | None]


def next_branches(
    branches: BranchLosses,
    tolerance: float,
    *,
    guess: float = 1.0,
    error: float = 0.1,
    most_seeds: int = MOST_SEEDS,
    earlier: Sequence[BranchLosses] = (),
) -> NextBranches:
    """Return the branches of one checkpoint to run next.

    Args:
        branches: all factors that may be run, and the losses so far; no row is needed for a seed that was not run.
        tolerance: largest difference from the loss of the smallest factor at which a factor has recovered.
        guess: guess of k*, such as the result of the checkpoint before.
        error: probability that k* lies outside :attr:`NextBranches.between`, for normal differences. Each of the two
            factors next to k* is misjudged with at most half of it; factors farther away are hardly ever misjudged.
        most_seeds: limit of the seeds of one factor.
        earlier: branches of other checkpoints, whose noise is assumed to be the same.
    """
    factors, count = branches.factors, len(branches.factors)
    noise = _noises([*earlier, branches])
    states = [BranchState.RECOVERED]
    states += [_state(branches, index, noise, tolerance, error / 2, most_seeds) for index in range(1, count)]
    there = np.zeros((most_seeds, count), dtype=bool)
    there[: len(branches.losses)] = ~np.isnan(branches.losses[:most_seeds])
    absent = ~(there & there[:, [0]])
    lost_to_all = np.isposinf(branches.losses[~np.isnan(branches.losses[:, 0]), 0])
    for index in range(1, count):
        # no seed is left, or the smallest factor diverged with all seeds
        untold = not absent[:, index].any() or (len(lost_to_all) and lost_to_all.all())
        if states[index] is BranchState.OPEN and untold:
            states[index] = BranchState.UNTOLD
    last = max(index for index, state in enumerate(states) if state is BranchState.RECOVERED)
    lost = next((index for index in range(last + 1, count) if states[index] is BranchState.LOST), count)
    between = (float(factors[last]), float(factors[lost]) if lost < count else None)
    waiting = [index for index in range(last + 1, lost) if states[index] is BranchState.OPEN]
    near = last > 0 and lost < count and factors[lost] <= _NEAR * factors[last]
    if near or not waiting:
        return NextBranches(states=tuple(states), between=between)
    untold = max((index for index in range(last + 1, lost) if states[index] is BranchState.UNTOLD), default=0)
    at = _where(factors, waiting, last, lost, untold, guess)
    seed = int(absent[:, at].argmax())
    run = tuple(index for index in (0, at) if not there[seed, index])
    return NextBranches(run=run, seed=seed, states=tuple(states), between=between)


def _where(factors: Array, waiting: Sequence[int], last: int, lost: int, untold: int, guess: float) -> int:
    """Return the index of the factor to test next, one of ``waiting``: so far from k* that few seeds decide."""
    if lost < len(factors):
        wanted = math.sqrt(factors[last] * factors[lost]) if last else factors[lost] / _NEAR
        return min(waiting, key=lambda index: (round(abs(math.log(factors[index] / wanted)), 6), index))
    beyond = [index for index in waiting if index > untold]
    least = _NEAR * factors[last] if last else factors[untold] if untold else math.sqrt(2) * guess
    return next((index for index in beyond if factors[index] >= least), (beyond or waiting)[-1])


def _apart(branches: BranchLosses, index: int) -> Array:
    """Return the differences of the loss from that of the smallest factor, for seeds at which both are finite."""
    apart = branches.losses[:, index] - branches.losses[:, 0]
    return np.asarray(apart[np.isfinite(apart)])


def _noises(checkpoints: Iterable[BranchLosses]) -> Array:
    """Return a row for every factor and checkpoint that two or more seeds ran, ``[J, 3]``: the logarithm of its ratio
    to the smallest factor, the sum of squared deviations of its differences, and their degrees of freedom."""
    found = []
    for branches in checkpoints:
        logs = np.log(branches.factors / branches.factors[0])
        parts = [(logs[index], _apart(branches, index)) for index in range(1, len(logs))]
        found += [(log, ((d - d.mean()) ** 2).sum(), len(d) - 1) for log, d in parts if len(d) > 1]
    return np.array(found).reshape(-1, 3)


def _state(branches: BranchLosses, index: int, noise: Array, tolerance: float, level: float, most: int) -> BranchState:
    """Return the state of the sequential test of one factor, which did not decide before the last seed."""
    if np.isposinf(branches.losses[:, index]).any():
        return BranchState.LOST
    apart = _apart(branches, index)
    count = len(apart)
    if not count:
        return BranchState.OPEN
    log = math.log(branches.factors[index] / branches.factors[0])
    # the noise of a difference grows with the distance of the factors: its variance in proportion to the logarithm
    squares = noise[:, 1] * np.maximum(1.0, log / noise[:, 0])
    total, freedom = float(squares.sum()), float(noise[:, 2].sum())
    own, less = float(((apart - apart.mean()) ** 2).sum()), count - 1
    if less > 0 and freedom > less:
        others = max(total - own, 0.0) / (freedom - less)
        if fdtrc(less, freedom - less, own / less / others if others else math.inf) < _UNLIKE:
            total, freedom = own, float(less)

    def reach(look: int) -> float:
        """Half the width of the test's interval after so many seeds; infinity if the noise is unknown."""
        if not freedom:
            return math.inf
        now, before = (math.log1p((math.e - 1) * min(test / most, 1.0)) for test in (look, look - 1))
        spent = max(level * (now - before), 1e-12)
        return math.sqrt(total / freedom / look) * float(-stdtrit(freedom + look - count, spent))

    mean = float(apart.mean())
    if mean - reach(count) > tolerance:
        return BranchState.LOST
    if mean + reach(count) <= tolerance:
        return BranchState.RECOVERED
    # if the mean stays where it is, would all seeds that are allowed decide?
    told = freedom < 2 or abs(mean - tolerance) > reach(most)
    return BranchState.OPEN if told and count < most else BranchState.UNTOLD


@dataclass(frozen=True, kw_only=True)
class BracketedFactor:
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
        error: see :func:`next_branches`.
        earlier: results at earlier checkpoints of the same run.
    """

    def __init__(
        self, every: Sweep, factors: Mapping[int, Fraction], *, within: float, error: float,
        earlier: Sequence[BracketedFactor],
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
        wanted, seed = tuple(sizes[index] for index in answer.run), self._every.axes.seeds[answer.seed]
        return self._every.replace(batch_sizes=wanted, seeds=(seed,))

    def add(self, search: Search) -> None:
        """Read the losses of the branches that were to run next."""
        answer, sizes = self._answer(), list(self._factors)
        for trial in search.trials():
            self._losses[answer.seed, sizes.index(trial.config.batch_size)] = _loss(trial)
        self._failed = bool(np.isnan(self._losses[answer.seed, list(answer.run)]).any())

    def result(self) -> BracketedFactor:
        """Return what is known so far."""

        assert self._every.start.parent is not None
        (label,), answer = self._every.axes.labels.values(), self._answer()
        named = dict(zip(self._places.tolist(), self._factors.values(), strict=True))
        low, high = answer.between
        states = zip(self._factors.values(), answer.states, strict=True)
        untold = [k for k, state in states if state is BranchState.UNTOLD]
        return BracketedFactor(
            optimizer=label, examples=self._every.start.parent.examples, recovered=named[low],
            lost=None if high is None else named[high], branches=int((~np.isnan(self._losses)).sum()),
            done=not (answer.run or self._failed),
            untold=tuple(k for k in untold if low < k < (high or math.inf)),
            losses=BranchLosses(self._places, self._losses),
        )  # fmt: skip

    def _answer(self) -> NextBranches:

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
    return target.sign * end_mean(rows[:, 0], rows[:, 1], end=trial.config.max_examples)
