"""Policies, which choose the next sweep from those that have run and report the outcome at the end; one per file."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from cbs.registry import ImportFallback, Registry
from cbs.trial.store import Store
from sweeps.folder.manifest import all_code_changes
from sweeps.outlook.cost import Cost
from sweeps.outlook.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report
from sweeps.search.search import Limits, Search
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


@dataclass(frozen=True)
class Underway:
    """What was asked for, and what has run so far.

    Attributes:
        sweep: the requested sweep, with its target resolved.
        folder: its folder.
        limits: once one is reached no trial starts any more, and no further sweep has to follow.
        note: called with each line of information for the user.
        workers: number of trials that run at once on this machine; 0 for what only a cluster knows.
        ran: every sweep that this command has run, as its search and its folder, in order.
    """

    sweep: Sweep
    folder: Path
    limits: Limits
    note: Callable[[str], None] = lambda line: None
    workers: int = 0
    ran: list[tuple[Search, Path]] = field(default_factory=list)

    @property
    def searches(self) -> list[Search]:
        """The searches of all sweeps that have run."""
        return [search for search, _ in self.ran]


class Policy(ABC):
    """Chooses the next sweep. An object serves one call of :func:`sweeps.launching.loop.run_sweep`.

    Attributes:
        goal: half-width of the interval that is sought; ``None`` if none is.
        timed: whether the steps of the requested sweep are timed beforehand.
        stored: whether the folder of the requested sweep holds its own trials.
        narrows_budgets: whether it is the one that makes answers at equal budgets as precise as ``--precision`` says.
        asked_as: what a user asks for who gets this policy.
        excludes: what does not combine with the policy, by its name in :mod:`sweeps.spec.combinations` or the option of
            a start or a limit, with the reason.
        needs: what the policy needs, likewise.
        remedy: what to do about what it excludes.

    Example:
        A policy that runs a sweep with three more seeds, whatever its outcome::

            class MoreSeeds(Policy):
                def next(self, underway):
                    seeds = underway.sweep.axes.seeds
                    wanted = [seeds, (*seeds, 101, 102, 103)][len(underway.ran) :]
                    return (underway.sweep.replace(seeds=wanted[0]), underway.folder) if wanted else None
    """

    goal: float | None = None
    timed: ClassVar[bool] = True
    stored: ClassVar[bool] = True
    narrows_budgets: ClassVar[bool] = False
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
    def next(self, underway: Underway) -> tuple[Sweep, Path] | None:
        """Return the sweep to run next and its folder, or ``None`` at the end.

        :func:`sweeps.launching.loop.follow` asks at the start, and again whenever a sweep has run. A sweep whose trials
        are stored returns at once. An interrupted command therefore continues where it stopped, provided that what is
        returned depends only on what has run and on files.
        """

    def report(self, underway: Underway) -> SweepReport:
        """Return the outcome; called once, after :meth:`next` has returned ``None``."""
        return outcome(underway, underway.searches)

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        """Return what ``--dry-run`` prints instead of running what :meth:`next` returns.

        Args:
            sweep: the requested sweep, with its target resolved.
            folder: its folder.
            cost: measured cost of its steps; ``None`` if trials run elsewhere.
            workers: number of trials at a time; 0 if only the cluster knows it.
            gpu_hour: dollars for an hour of a GPU; ``None`` if not given.
        """
        divided = parts(sweep)
        run = divided[:1] if sweep.shares_trials else divided
        reports = [dry_run_report(part, folder, cost, workers, gpu_hour, self.goal) for part in run]
        lines = [line for report in reports for line in ["", *dry_run_lines(report)]][1:]
        if len(divided) == 1:
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


def parts(sweep: Sweep) -> list[Sweep]:
    """Return the sweeps with one search each into which a sweep divides.

    With budgets there is one for every budget, the one whose trials serve the others first; with further targets one
    for every target; otherwise it is the sweep itself.
    """
    if sweep.trial.further_targets and sweep.search.judged_by is None:
        return [sweep, *(sweep.replace(judged_by=target.metric) for target in sweep.trial.further_targets)]
    if not sweep.budgets:
        return [sweep]
    if sweep.shares_trials:
        return [sweep.replace(judged_at=budget) for budget in reversed(sweep.budgets)]
    return [sweep.replace(budgets=(budget,)) for budget in sweep.budgets]


def outcome(underway: Underway, searches: Sequence[Search], **more: Any) -> SweepReport:
    """Report the outcome of the requested sweep, which the first search is of, and of further ones in its folder.

    Args:
        underway: what was asked for.
        searches: at least one, see :func:`sweeps.outlook.report.outcome_report`.
        more: further entries of the report.
    """
    first, *further = searches
    report = outcome_report(first, underway.folder, further, underway.limits) | more
    report["code_changes"] = all_code_changes(Store(underway.folder))
    return SweepReport(report, outcome_lines(report))


POLICIES: Registry[type[Policy]] = Registry("policy", "sweeps.launching.policies", makes=Policy)
POLICIES.fallback = ImportFallback("policy")

__all__ = ["POLICIES", "Policy"]


@POLICIES.register("once")
class Once(Policy):
    """Runs only the requested sweep."""

    def next(self, underway: Underway) -> tuple[Sweep, Path] | None:
        divided, ran = parts(underway.sweep), underway.searches
        count, shared = len(divided), len(divided) > 1 and underway.sweep.shares_trials
        if ran and (underway.limits.reached or (len(ran) == count and not shared)):
            return None
        # trials requested for one budget may show a better learning rate for another: until a pass adds none
        if len(ran) >= 2 * count and not len(ran) % count and _ids(ran[-count:]) == _ids(ran[-2 * count : -count]):
            return None
        return divided[len(ran) % count], underway.folder

    def report(self, underway: Underway) -> SweepReport:
        latest = dict(zip(itertools.cycle(range(len(parts(underway.sweep)))), underway.searches, strict=False))
        return outcome(underway, list(latest.values()))


def _ids(searches: Sequence[Search]) -> set[str]:
    return {trial.trial_id for search in searches for trial in search.trials()}
