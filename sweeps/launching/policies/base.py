"""Base class of policies, which choose the next sweep from the results so far and report the outcome at the end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sweeps.outlook.cost import Cost
from sweeps.outlook.report import dry_run_lines, dry_run_report
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.combinations import Rule, asked_for, refuse
from sweeps.spec.spec import Sweep


@dataclass(frozen=True)
class SweepReport:
    """Outcome of a sweep, or of its simulation before it runs.

    Attributes:
        content: plain JSON values.
        lines: the same as lines to print.
    """

    content: dict[str, Any]
    lines: list[str]


Sweeps = Generator[tuple[Sweep, Path], Search, SweepReport]
"""A generator that yields a sweep and its folder, is sent the finished search, and returns the report."""


class Policy(ABC):
    """Chooses the next sweep. An object serves one call of :func:`sweeps.launching.loop.run_sweep`.

    Attributes:
        timed: whether the steps of the requested sweep are timed beforehand.
        stored: whether the folder of the requested sweep holds its own trials.
        asked_as: what a user asks for who gets this policy.
        excludes: what does not combine with the policy, by its name in :mod:`sweeps.spec.combinations` or the option of
            a start or a limit, with the reason.
        needs: what the policy needs, likewise.
        remedy: what to do about what it excludes.

    Example:
        A policy that runs a sweep with three more seeds, whatever its outcome::

            class MoreSeeds(Policy):
                def sweeps(self, sweep, folder, limits, note):
                    first = yield sweep, folder
                    more = yield sweep.replace(seeds=(*sweep.axes.seeds, 101, 102, 103)), folder
                    note("three more seeds have run")
                    return outcome(first, folder, [more], limits)
    """

    timed: ClassVar[bool] = True
    stored: ClassVar[bool] = True
    asked_as: str = "the policy"
    excludes: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Mapping[str, str]] = {}
    remedy: str = "leave one of the two out"

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        """Refuse what does not combine, with each other or with the policy; called once, before data are loaded or
        anything is built.

        Args:
            sweep: the sweep as requested; its target may not be resolved yet.
            limits: limits after which no trial starts any more.
            source: folder of results at whose best learning rates the search starts; ``None`` for none.

        Raises:
            ConfigError: if two do not combine, or a setting is not supported; the message says what to leave out.
        """
        given = {
            "--from": source is not None,
            "--max-time": math.isfinite(limits.deadline),
            "--max-examples": math.isfinite(limits.examples),
        }
        asked = asked_for(sweep) | {name for name, there in given.items() if there}
        refuse(asked)
        excluded = [Rule(self.asked_as, other, why) for other, why in self.excludes.items()]
        needed = [Rule(self.asked_as, other, why) for other, why in self.needs.items()]
        refuse({self.asked_as, *asked}, excluded, needed, self.remedy)

    @abstractmethod
    def sweeps(self, sweep: Sweep, folder: Path, limits: Limits, note: Callable[[str], None]) -> Sweeps:
        """Yield the sweeps one after the other; :func:`sweeps.launching.loop.follow` runs the trials that are missing.

        A sweep whose trials are stored is yielded again and returns at once. An interrupted command therefore continues
        where it stopped, provided that what is yielded depends only on what is sent and on files.

        Args:
            sweep: the requested sweep, with its target resolved.
            folder: its folder.
            limits: once one is reached no trial starts any more, and no further sweep must be yielded.
            note: called with each line of information for the user.
        """

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        """Return what ``--dry-run`` prints instead of running :meth:`sweeps`.

        Args:
            sweep: the requested sweep, with its target resolved.
            folder: its folder.
            cost: measured cost of its steps; ``None`` if trials run elsewhere.
            workers: number of trials at a time; 0 if only the cluster knows it.
            gpu_hour: dollars for an hour of a GPU; ``None`` if not given.
        """
        parts = sweep.parts[:1] if sweep.shares_trials else sweep.parts
        reports = [dry_run_report(part, folder, cost, workers, gpu_hour) for part in parts]
        lines = [line for report in reports for line in ["", *dry_run_lines(report)]][1:]
        if len(sweep.parts) == 1:
            return SweepReport(reports[0], lines)
        total = reports[0] | {"axes": sweep.axes.to_json(), "budgets": list(sweep.budgets)}
        for name in ("trials", "trials_done", "examples", "seconds"):
            values = [report[name] for report in reports]
            total[name] = None if None in values else sum(values)
        for name in ("first", "expected"):
            total[name] = [row for report in reports for row in report[name]]
        if sweep.shares_trials:
            others = "the other targets" if sweep.trial.further_targets else "the smaller budgets"
            lines.append(f"{others} are read from the same trials, and may need further learning rates")
        else:
            lines.append(f"in all        about {total['trials']} trials, {total['examples']:,} examples")
        return SweepReport(total, lines)

    def not_counted(self, report: SweepReport, limits: Limits) -> Iterator[str]:
        """Yield lines about costs that :meth:`preview` does not include; called after it.

        Args:
            report: the report that :meth:`preview` returned.
            limits: limits after which no trial starts any more.
        """
        if (report.content.get("examples") or 0) > limits.examples:
            yield f"--max-examples {limits.examples:,.0f} is expected to end it before its last trial"
