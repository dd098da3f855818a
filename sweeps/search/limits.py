"""When a sweep ends though there is more to run: after a time, or after so many examples."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cbs.trial.record import TrialResult
from sweeps.search.observer import Observer
from sweeps.search.search import Search


@dataclass
class Limits(Observer):
    """Over all parts of a sweep. Once one is reached no trial starts any more, and those under way end.

    Attributes:
        deadline: by :func:`time.monotonic`.
        examples: that all trials may take together, those of earlier runs of the sweep included.
    """

    deadline: float = math.inf
    examples: float = math.inf
    _spent: dict[str, int] = field(default_factory=dict)

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        self.add(search.trials())

    def finished(self, result: TrialResult, search: Search) -> None:
        self.add([result])

    def add(self, results: Iterable[TrialResult]) -> None:
        """Count the examples of trials, of every trial once."""
        for result in results:
            self._spent[result.trial_id] = result.final_examples

    @property
    def spent(self) -> int:
        """Examples of all trials that have ended, whatever their status."""
        return sum(self._spent.values())

    @property
    def reached(self) -> str | None:
        if time.monotonic() >= self.deadline:
            return "the time of --max-time is over"
        if self.spent >= self.examples:
            return f"the {self.examples:,.0f} examples of --max-examples are spent"
        return None
