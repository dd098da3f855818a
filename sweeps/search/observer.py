"""What follows a sweep while its trials run: the screen, the lock of the folder, trackers, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cbs.trial.record import TrialResult
from sweeps.search.search import Search


class Observer:
    """Is told what happens to a sweep, by the thread that runs it. A method that is not overridden does nothing; one
    that raises a :class:`cbs.errors.CbsError` ends the sweep with it."""

    @property
    def reached(self) -> str | None:
        """Why no trial starts any more and those under way end, in words; ``None`` while there is no reason."""
        return None

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        """The folder was read: these trials are in it, and those of them that belong to the sweep in ``search``."""

    def began(self, search: Search) -> None:
        """Trials are about to run; not called where none is missing."""

    def finished(self, result: TrialResult, search: Search) -> None:
        """A trial has ended, is stored and in ``search``."""

    def looked(self, search: Search, running: Mapping[str, dict[str, Any]]) -> None:
        """Called several times a second.

        Args:
            search: of the sweep.
            running: the last signs of life of the running trials, by trial id: ``step``, ``value``, ``host``, ``time``.
        """

    def note(self, line: str) -> None:
        """Something a person should know."""

    def ended(self, search: Search) -> None:
        """No trial runs any more, for whatever reason; called once after :meth:`began`."""

    def settled(self, result: TrialResult) -> None:
        """The status of a stored trial has changed since its cell is complete."""
