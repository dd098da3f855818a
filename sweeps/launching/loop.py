"""``cbs sweep`` as a function: one loop, in which a policy chooses the next sweep from the results so far."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cbs.trial.config import COMMAND
from sweeps.launching import launch
from sweeps.launching.policies import Policy
from sweeps.launching.policies.base import SweepReport
from sweeps.launching.policies.once import Once
from sweeps.outlook.cost import Cost
from sweeps.outlook.progress import Progress
from sweeps.running.child import Child
from sweeps.running.cluster import Resources
from sweeps.running.patience import patience, timed_apart
from sweeps.running.prestart import PrestartedRay
from sweeps.running.time_limit import time_limit
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.search.warm_start import started
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import calling_theirs

RESULTS = Path("results")


def run_sweep(
    sweep: Sweep,
    output: Path | None = None,
    *,
    policy: Policy | None = None,
    target: float | None = None,
    source: Path | None = None,
    resources: Resources | None = None,
    limits: Limits | None = None,
    stop_after: float | None = None,
    trackers: Sequence[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> SweepReport:
    """Run a sweep to where its policy ends it; what ``output`` holds already is not run again.

    Args:
        sweep: of a recipe in :data:`sweeps.recipes.RECIPES`, or one's own.
        output: folder of the sweep; ``None`` for ``results/NAME``. On a cluster every node must see it at that path.
        policy: one of :data:`sweeps.launching.policies.POLICIES`; ``None`` for the sweep alone.
        target: value of the workload's metric to train to; ``None`` for the sweep's own.
        source: results that say where the search of learning rates starts.
        resources: where to run; ``None`` for all cores of this machine.
        limits: when no trial starts any more.
        stop_after: seconds after which it is interrupted; in the main thread only.
        trackers: names in :data:`sweeps.trackers.TRACKERS`; every trial is written to them, too.
        note: tells a person a line.

    Returns:
        What came of it, as ``cbs sweep --json`` has it.

    Raises:
        CbsError: for what was asked for, and as :func:`sweeps.launching.launch.sweep`.

    Example:
        Until the critical batch size is known to about 15 %::

            from sweeps.launching.loop import run_sweep
            from sweeps.launching.policies import POLICIES
            from sweeps.recipes import RECIPES

            report = run_sweep(RECIPES["quick"](), policy=POLICIES["precision"](0.15))
            print(report.content["precision"]["reached"], *report.lines, sep="\\n")
    """
    began, policy, limits, resources = time.monotonic(), policy or Once(), limits or Limits(), resources or Resources()
    policy.check(sweep, limits=limits, source=source)
    resources.check_devices(sweep.device, command=sweep.workload.name == COMMAND)
    plan = prepare(sweep, sweep, policy, target=target, output=output, source=source, resources=resources, note=note)
    with contextlib.nullcontext() if stop_after is None else time_limit(stop_after, began):
        return carry_out(plan, policy, resources=resources, limits=limits, trackers=trackers, note=note)


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that can be run.

    Attributes:
        sweep: its target resolved, every part of it checked.
        folder: of it.
        cost: of its steps; ``None`` where they were not timed.
    """

    sweep: Sweep
    folder: Path
    cost: Cost | None


def timed(sweep: Sweep, policy: Policy, resources: Resources) -> bool:
    """Whether steps can be timed beforehand: on this machine, of models that are built here."""
    return policy.timed and resources.address is None and sweep.workload.name != COMMAND


def prepare(
    sweep: Sweep,
    recipe: Sweep,
    policy: Policy,
    *,
    target: float | None = None,
    output: Path | None = None,
    source: Path | None = None,
    resources: Resources,
    timer: Child | None = None,
    give_up: Callable[[], float] = lambda: math.inf,
    note: Callable[[str], None] = lambda line: None,
) -> PlannedSweep:
    """Resolve a sweep, and time a few of its steps.

    Args:
        sweep: see :func:`run_sweep`.
        recipe: what the sweep was before anything was asked for, which gives the folder its name.
        policy: see :func:`run_sweep`.
        target: likewise.
        output: likewise.
        source: likewise.
        resources: likewise.
        timer: a process that times steps, which this ends.
        give_up: seconds after which the timing has taken too long, asked for when it begins.
        note: see :func:`run_sweep`.

    Raises:
        CbsError: as :func:`sweeps.launching.launch.resolve`.
    """
    with calling_theirs():
        resolved = launch.resolve(sweep, target)
        folder = output if output is not None else launch.output_folder(resolved, recipe, RESULTS)
        resolved = started(resolved, folder, source, note)
        if not timed(sweep, policy, resources):
            return PlannedSweep(resolved, folder, None)
        cost = timed_apart(resolved, resources.trial_timeout, timer, give_up())
    if cost is None:
        note("note: no step could be timed for lack of memory or time; the duration of the sweep is unknown")
    for doubt in cost.doubts if cost is not None else ():
        note(f"note: {doubt}")
    return PlannedSweep(resolved, folder, cost)


def carry_out(
    plan: PlannedSweep,
    policy: Policy,
    *,
    resources: Resources,
    limits: Limits,
    trackers: Sequence[str] = (),
    progress: Progress | None = None,
    command: str = "",
    ahead: PrestartedRay | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> SweepReport:
    """Run a plan; see :func:`run_sweep`.

    Args:
        plan: what :func:`prepare` made.
        policy: which sweep comes next.
        resources: where to run.
        limits: when no trial starts any more.
        trackers: get every trial.
        progress: shows what happens; ``None`` for silence.
        command: the command line, for the record.
        ahead: the Ray of ``resources``, if it is being started; one serves all sweeps of the plan.
        note: tells a person a line, where there is no ``progress``.
    """
    silence = patience(plan.sweep, plan.cost)

    def run(sweep: Sweep, folder: Path) -> Search:
        return launch.sweep(
            sweep,
            folder,
            resources=resources,
            progress=progress,
            command=command,
            patience=silence,
            limits=limits,
            trackers=trackers,
            ahead=ahead,
        )

    with contextlib.ExitStack() as context:
        ahead = ahead or context.enter_context(PrestartedRay())
        return follow(policy, plan.sweep, plan.folder, run, limits, note if progress is None else progress.note)


def follow(
    policy: Policy,
    sweep: Sweep,
    folder: Path,
    run: Callable[[Sweep, Path], Search],
    limits: Limits,
    note: Callable[[str], None] = lambda line: None,
) -> SweepReport:
    """The loop: run what the policy says comes next, until it has a report.

    Args:
        policy: is asked.
        sweep: what was asked for.
        folder: of it.
        run: runs what a folder does not hold yet of a sweep.
        limits: see :meth:`sweeps.launching.policies.base.Policy.sweeps`.
        note: likewise.
    """
    coming = policy.sweeps(sweep, folder, limits, note)
    try:
        part, place = next(coming)
        while True:
            part, place = coming.send(run(part, place))
    except StopIteration as end:
        report: SweepReport = end.value
        return report
