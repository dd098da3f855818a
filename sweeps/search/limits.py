"""End a sweep before all its trials have run: after a given time, or after a given number of examples."""

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
    """Limits over all parts of a sweep. Once one is reached, no further trial starts and the running ones are ended.

    Attributes:
        deadline: time at which the sweep ends, on the clock of :func:`time.monotonic`.
        examples: number of examples that all trials may take together, including earlier runs of the sweep.
    """

    deadline: float = math.inf
    examples: float = math.inf
    _spent: dict[str, int] = field(default_factory=dict)

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        self.add(search.trials())

    def finished(self, result: TrialResult, search: Search) -> None:
        self.add([result])

    def add(self, results: Iterable[TrialResult]) -> None:
        """Count the examples of some trials; each trial counts once."""
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
