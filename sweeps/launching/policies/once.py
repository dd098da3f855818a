"""The default policy: one sweep and nothing more; several budgets or targets are run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cbs.trial.store import Store
from sweeps.folder.manifest import all_code_changes
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.base import Policy, SweepReport, Sweeps
from sweeps.outlook.cost import Cost
from sweeps.outlook.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report
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

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        if len(sweep.parts) == 1:
            return super().preview(sweep, folder, cost, workers, gpu_hour)
        parts = sweep.parts[:1] if sweep.shares_trials else sweep.parts
        reports = [dry_run_report(part, folder, cost, workers, gpu_hour) for part in parts]
        lines = [line for report in reports for line in ["", *dry_run_lines(report)]][1:]
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
