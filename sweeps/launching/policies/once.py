"""The default policy: one sweep and nothing more; several budgets or targets are run one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from sweeps.launching.policies import POLICIES, Policy, SweepReport, Underway, outcome, parts
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep


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
