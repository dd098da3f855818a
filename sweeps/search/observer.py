"""Base class for everything that follows a running sweep: the screen, the folder lock, trackers, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
