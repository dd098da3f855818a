"""What a policy is: it says which sweep comes next from what is there, and what is told at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sweeps.outlook.cost import Cost
from sweeps.outlook.report import dry_run_lines, dry_run_report
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep


@dataclass(frozen=True)
class SweepReport:
    """What came of a sweep, or of playing it through.

    Attributes:
        content: plain JSON values.
        lines: the same for a person.
    """

    content: dict[str, Any]
    lines: list[str]


Sweeps = Generator[tuple[Sweep, Path], Search, SweepReport]
"""Yields a sweep and the folder it belongs to, is sent its search once that has ended, and returns the report."""


class Policy(ABC):
    """Says which sweep comes next. An object serves one call of :func:`sweeps.launching.loop.run_sweep`.

    Attributes:
        timed: whether the steps of the sweep that was asked for are timed beforehand.

    Example:
        A policy that runs a sweep on three seeds more, whatever came of it::

            class MoreSeeds(Policy):
                def sweeps(self, sweep, folder, limits, note):
                    first = yield sweep, folder
                    more = yield sweep.replace(seeds=(*sweep.seeds, 101, 102, 103)), folder
                    note("three seeds more have run")
                    return outcome(first, folder, [more], limits)
    """

    timed: ClassVar[bool] = True

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        """Refuse what the policy does not go with; called once, before data are loaded or anything is built.

        Args:
            sweep: as asked for, its target perhaps not resolved.
            limits: when no trial starts any more.
            source: results that say where the search of learning rates starts; ``None`` for none.

        Raises:
            ConfigError: with what to leave out.
        """
        return

    @abstractmethod
    def sweeps(self, sweep: Sweep, folder: Path, limits: Limits, note: Callable[[str], None]) -> Sweeps:
        """The sweeps, one after the other; :func:`sweeps.launching.loop.follow` runs what their folders do not hold.

        A sweep that was stored before is yielded again: its search comes back at once. So the same command goes on
        where it was killed, as long as what is yielded follows from what is sent, and from files.

        Args:
            sweep: what was asked for, its target resolved.
            folder: of the sweep.
            limits: once one is reached no trial starts any more; nothing further is to be yielded then.
            note: tells a person a line.
        """

    def preview(self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int) -> SweepReport:
        """What ``--dry-run`` tells, in place of :meth:`sweeps`.

        Args:
            sweep: what was asked for, its target resolved.
            folder: of the sweep.
            cost: of its steps; ``None`` where they were not timed.
            workers: trials at a time; 0 where only the cluster knows.
        """
        report = dry_run_report(sweep, folder, cost, workers)
        return SweepReport(report, dry_run_lines(report))

    def not_counted(self, report: SweepReport, limits: Limits) -> Iterator[str]:
        """Lines about what :meth:`preview` does not count; asked for after it.

        Args:
            report: what it returned.
            limits: when no trial starts any more.
        """
        if (report.content.get("examples") or 0) > limits.examples:
            yield f"--max-examples {limits.examples:,.0f} is expected to end it before its last trial"
