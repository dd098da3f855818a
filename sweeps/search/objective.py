"""What a learning-rate search minimises: the steps to a target, or the metric after a given number of examples.

The search itself knows only costs: positive numbers, lower is better, compared by their logarithms, NaN for a trial
that has none. Its thresholds are in log steps. A metric m enters as the cost :math:`e^{\\pm m/u}`, with the unit
:math:`u` chosen such that the smallest difference of the metric that matters (:attr:`sweeps.spec.spec.Sweep.within`)
counts as :data:`MATTERS` log steps. If the user gave no such difference, :math:`u` is what the metric gained over the
last e-fold of data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from cbs.trial.record import TrialResult
from cbs.trial.target import Target
from sweeps.spec.spec import Sweep

# Log steps as which the smallest difference of the metric that matters counts
MATTERS = 0.05

# Smallest difference that matters, as a fraction of the target, if the user gave none and the metric no longer
# improves.
LEAST = 0.002

# Log cost up to which it is linear in the metric; beyond it the cost grows more slowly, so that none overflows
_MOST = 300.0


class Objective(ABC):
    """Quantity that a search minimises.

    Attributes:
        column: heading of the quantity in a table.
        judged: target by which trials are judged; ``None`` for the trials' own target.
        done: what a trial that has a cost has done, in words.
    """

    column: str
    done: str
    judged: Target | None = None

    @abstractmethod
    def cost(self, result: TrialResult) -> float:
        """Return the cost of a trial, NaN if it has none. Called once for every trial that ends."""

    def scaled(self, results: Sequence[TrialResult]) -> Objective:
        """Return the objective with the unit of costs taken from some trials, or itself if the unit is fixed."""
        return self

    @abstractmethod
    def amount(self, cost: float) -> float:
        """Convert a cost to the unit of :attr:`column`."""

    @abstractmethod
    def text(self, cost: float) -> str:
        """Format the result of :meth:`amount` for display."""

    @abstractmethod
    def gained(self, logs: float) -> str:
        """Say how much better one cost is than another, given the log of their ratio."""

    @abstractmethod
    def apart(self, logs: float) -> str:
        """Say how much worse one cost is than another, with its sign, given the log of their ratio."""


class StepsToTarget(Objective):
    """Updates until a target is reached: ``judged``, or the trials' own target if that is ``None``."""

    column, done = "steps", "reached the target"

    def __init__(self, judged: Target | None = None) -> None:
        self.judged = judged

    def cost(self, result: TrialResult) -> float:
        # 0 steps, to a target that is passed before the first one, have no logarithm and say nothing of a learning rate
        return result.steps_to(self.judged or result.config.target) or math.nan

    def amount(self, cost: float) -> float:
        return cost

    def text(self, cost: float) -> str:
        return f"{cost:.0f}"

    def gained(self, logs: float) -> str:
        return f"{100 * logs:.1f} % fewer steps"

    def apart(self, logs: float) -> str:
        return f"{100 * math.expm1(logs):+.1f} % steps"


class FinalMetric(Objective):
    """The metric after a trial has seen its budget of examples.

    Args:
        target: names the metric and says whether lower or higher is better.
        budget: number of examples after which the metric is read.
        within: smallest difference of the metric that matters; ``None`` if the user gave none.
    """

    done = "trained to the budget"

    def __init__(self, target: Target, budget: int, within: float | None) -> None:
        self.column, self.target, self.budget, self._said = target.metric, target, budget, within is not None
        self.unit = (within or LEAST * abs(target.value) or LEAST) / MATTERS

    def cost(self, result: TrialResult) -> float:
        distance = self.target.distance(result.value_at(self.budget)) / self.unit
        if not math.isfinite(distance):
            return math.nan
        beyond = max(0.0, abs(distance) - _MOST)
        return math.exp(math.copysign(min(abs(distance), _MOST) + math.log1p(beyond), distance))

    def scaled(self, results: Sequence[TrialResult]) -> Objective:
        """Return the objective in the unit that the trials suggest, unless the user gave one.

        The unit is what the best trial gained over its last e-fold of data, estimated from its last doubling.
        """
        ends = [(self.cost(result), result) for result in results]
        known = [end for end in ends if math.isfinite(end[0])]
        if self._said or not known:
            return self
        best = min(known, key=lambda end: (end[0], end[1].trial_id))[1]
        gain = abs(best.value_at(self.budget / 2) - best.value_at(self.budget)) / math.log(2.0)
        return FinalMetric(self.target, self.budget, MATTERS * gain) if gain > self.unit else self

    def amount(self, cost: float) -> float:
        logs = math.log(cost)
        beyond = math.expm1(max(0.0, abs(logs) - _MOST))
        distance = math.copysign(min(abs(logs), _MOST) + beyond, logs) * self.unit
        return self.target.value + (distance if self.target.direction == "below" else -distance)

    def text(self, cost: float) -> str:
        return f"{self.amount(cost):.5g}"

    def gained(self, logs: float) -> str:
        return f"{self.unit * logs:.2g} in {self.column}"

    def apart(self, logs: float) -> str:
        return f"{self.target.sign * self.unit * logs:+.2g} in {self.column}"


def objective_of(sweep: Sweep) -> Objective:
    """Return what the search of a sweep minimises. The target of the sweep has to be resolved."""
    budget = sweep.budget_judged
    if budget is None:
        return StepsToTarget(sweep.judged)
    assert sweep.target is not None
    return FinalMetric(sweep.target, budget, sweep.search.within)
