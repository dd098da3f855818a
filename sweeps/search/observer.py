"""What follows a running sweep: the base class of the screen, the folder lock and the trackers; and the limits that end
it before all its trials have run.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cbs.trial.record import TrialResult
from sweeps.search.search import Search


class Observer:
    """Base class of objects that are notified by the thread that runs a sweep.

    A method that is not overridden does nothing. A method that raises a :class:`cbs.errors.CbsError` ends the sweep
    with that error.
    """

    @property
    def reached(self) -> str | None:
        """Reason, in words, why no further trial starts and the running ones end; ``None`` as long as there is none."""
        return None

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        """Called after the folder was read: ``stored`` are its trials; those that belong to the sweep are in
        ``search``."""

    def began(self, search: Search) -> None:
        """Called before trials start; not called if no trial is missing."""

    def finished(self, result: TrialResult, search: Search) -> None:
        """Called when a trial has ended, is stored, and has been added to ``search``."""

    def looked(self, search: Search, running: Mapping[str, dict[str, Any]]) -> None:
        """Called several times a second while trials run.

        Args:
            search: the search of the sweep.
            running: latest heartbeat of each running trial, by trial id: ``step``, ``value``, ``host``, ``time``.
        """

    def note(self, line: str) -> None:
        """Called with a message for the user."""

    def ended(self, search: Search) -> None:
        """Called once after :meth:`began`, when no trial is running any more for whatever reason."""

    def settled(self, result: TrialResult) -> None:
        """Called when the status of a stored trial has changed because its cell is complete."""


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
        # by trial, as several sweeps of a policy share trials and each shows them again
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
