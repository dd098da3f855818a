"""The default policy: one sweep and nothing more; several budgets or targets are run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cbs.trial.store import Store
from sweeps.folder.manifest import all_code_changes
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.base import Policy, SweepReport, Sweeps
from sweeps.outlook.report import outcome_lines, outcome_report
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep


@POLICIES.register("once")
class Once(Policy):
    """Runs only the requested sweep."""

    def sweeps(self, sweep: Sweep, folder: Path, limits: Limits, note: Callable[[str], None]) -> Sweeps:
        searches: dict[int, Search] = {}
        shared = len(sweep.parts) > 1 and sweep.shares_trials
        ran: set[str] | None = None
        while ran is None or (shared and not limits.reached):
            before = ran
            for place, part in enumerate(sweep.parts):
                searches[place] = yield part, folder
                if limits.reached:
                    break
            ran = {trial.trial_id for search in searches.values() for trial in search.trials()}
            if ran == before:
                break  # until then, trials requested for one budget may show a better learning rate for another
        first, *further = searches.values()
        return outcome(first, folder, further, limits)


def outcome(search: Search, folder: Path, further: Sequence[Search], limits: Limits, **more: Any) -> SweepReport:
    """Report the outcome of a sweep and of further sweeps in its folder.

    Args:
        search: search of the requested sweep.
        folder: its folder.
        further: see :func:`sweeps.outlook.report.outcome_report`.
        limits: see :func:`sweeps.outlook.report.outcome_report`.
        more: further entries of the report.
    """
    report = outcome_report(search, folder, further, limits) | more
    report["code_changes"] = all_code_changes(Store(folder))
    return SweepReport(report, outcome_lines(report))
