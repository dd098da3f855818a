"""One sweep and no more: what runs where no other policy is asked for."""

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
    """Runs the sweep that was asked for."""

    def sweeps(self, sweep: Sweep, folder: Path, limits: Limits, note: Callable[[str], None]) -> Sweeps:
        search = yield sweep, folder
        return outcome(search, folder, (), limits)


def outcome(search: Search, folder: Path, further: Sequence[Search], limits: Limits, **more: Any) -> SweepReport:
    """What came of a sweep and of further ones in its folder.

    Args:
        search: of the sweep that was asked for.
        folder: of it.
        further: see :func:`sweeps.outlook.report.outcome_report`.
        limits: likewise.
        more: goes into the report, too.
    """
    report = outcome_report(search, folder, further, limits) | more
    report["code_changes"] = all_code_changes(Store(folder))
    return SweepReport(report, outcome_lines(report))
