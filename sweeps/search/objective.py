"""What a search of learning rates minimises: the updates to a target, or the metric once so much data was seen.

The search itself knows costs only: positive numbers of which less is better, compared by their logarithms, and NaN for
a trial that has none. Its thresholds are in log steps; a metric enters it as :math:`e^{\\pm m/u}`, with :math:`u` such
that the difference that matters (:attr:`sweeps.spec.spec.Sweep.within`) counts as :data:`MATTERS` of them. Where nobody
said what matters, :math:`u` is what the metric gained over the last e-fold of data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from cbs.trial.record import TrialResult
from cbs.trial.target import Target
from sweeps.spec.spec import Sweep

MATTERS = 0.05
"""Log steps that a difference of the metric that matters counts as."""

LEAST = 0.002
"""Share of the target that is the least difference that matters, where nobody said and the metric has come to rest."""

_MOST = 300.0
"""Logarithm of a cost from which on it grows with that of the metric alone, so that no cost overflows."""


class Objective(ABC):
    """What is minimised.

    Attributes:
        column: heading of amounts in a table.
        judged: the target that it goes by; ``None`` for that of the trials.
        done: what a trial has done that has a cost, in words.
    """

    column: str
    done: str
    judged: Target | None = None

    @abstractmethod
    def cost(self, result: TrialResult) -> float:
        """Cost of a trial; NaN where it has none. Called once for every trial that ends."""

    def scaled(self, results: Sequence[TrialResult]) -> Objective:
        """The objective with its costs in the scale that some trials show; itself where there is but one scale."""
        return self

    @abstractmethod
    def amount(self, cost: float) -> float:
        """The cost in the unit of :attr:`column`."""

    @abstractmethod
    def text(self, cost: float) -> str:
        """:meth:`amount` for a person."""

    @abstractmethod
    def gained(self, logs: float) -> str:
        """A logarithm of two costs as how much better one of them is."""

    @abstractmethod
    def apart(self, logs: float) -> str:
        """A logarithm of two costs as how much worse one of them is, with its sign."""


class StepsToTarget(Objective):
    """Updates until the target is reached; of several that of ``judged``."""

    column, done = "steps", "reached the target"

    def __init__(self, judged: Target | None = None) -> None:
        self.judged = judged

    def cost(self, result: TrialResult) -> float:
        steps = result.steps_to(self.judged or result.config.target)
        return math.nan if steps is None else steps

    def amount(self, cost: float) -> float:
        return cost

    def text(self, cost: float) -> str:
        return f"{cost:.0f}"

    def gained(self, logs: float) -> str:
        return f"{100 * logs:.1f} % fewer steps"

    def apart(self, logs: float) -> str:
        return f"{100 * math.expm1(logs):+.1f} % steps"


class FinalMetric(Objective):
    """The metric once a trial has seen its budget.

    Args:
        target: names the metric, and says which side is better.
        budget: examples seen where the metric is looked at.
        within: difference of the metric that matters; ``None`` where nobody said.
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
        """In units of what the best of the trials gained over its last e-fold of data, by its last doubling, unless
        somebody said what matters."""
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
        sign = 1.0 if self.target.direction == "below" else -1.0
        return f"{sign * self.unit * logs:+.2g} in {self.column}"


def objective_of(sweep: Sweep) -> Objective:
    """What the search of a sweep minimises; its target resolved."""
    budget = sweep.budget_judged
    if budget is None:
        return StepsToTarget(sweep.judged)
    assert sweep.target is not None
    return FinalMetric(sweep.target, budget, sweep.within)
