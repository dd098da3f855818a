"""``cbs sweep`` as a function: a loop in which a policy chooses the next sweep from the results so far."""

# Tests replace classes that annotations name, perhaps before this module is read.
from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cbs.compute import device
from cbs.interrupts import time_limit
from cbs.trial.config import COMMAND
from sweeps.folder.lock import check_free
from sweeps.launching import launch
from sweeps.launching.policies import Once, Policy, SweepReport, Underway
from sweeps.outlook.cost import Cost
from sweeps.outlook.progress import Progress
from sweeps.running.child import Child
from sweeps.running.cluster import PrestartedRay
from sweeps.running.patience import patience, timed_apart
from sweeps.running.resources import Resources
from sweeps.running.run import Runs, SweepRun
from sweeps.search.search import Limits, Search
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
    """Run a sweep until its policy ends it; trials that ``output`` already contains are not run again.

    Args:
        sweep: a sweep from a recipe in :data:`sweeps.recipes.RECIPES`, or one defined by the caller.
        output: folder of the sweep; ``None`` for ``results/NAME``. On a cluster every node must see it at that path.
        policy: one of :data:`sweeps.launching.policies.POLICIES`; ``None`` to run only this sweep.
        target: value of the workload's metric to train to; ``None`` for the sweep's own target.
        source: folder of results at whose best learning rates the search starts.
        resources: where to run; ``None`` for all cores of this machine.
        limits: limits after which no trial starts any more.
        stop_after: seconds after which the sweep is interrupted; works only in the main thread.
        trackers: names in :data:`sweeps.launching.trackers.TRACKERS`; every trial is also written to these.
        note: called with each line of information for the user.

    Returns:
        The outcome, with the content that ``cbs sweep --json`` prints.

    Raises:
        CbsError: if the arguments are invalid, and as :func:`sweeps.launching.launch.sweep`.

    Example:
        Run until the critical batch size is known to about 15 %::

            from sweeps.launching.loop import run_sweep
            from sweeps.launching.policies import POLICIES
            from sweeps.recipes import RECIPES

            report = run_sweep(RECIPES["quick"](), policy=POLICIES["precision"](0.15))
            print(report.content["precision"]["reached"], *report.lines, sep="\\n")
    """
    began, policy, limits, resources = time.monotonic(), policy or Once(), limits or Limits(), resources or Resources()
    policy.check(sweep, limits=limits, source=source)
    resources.check_devices(sweep.trial.device, command=sweep.trial.workload.name == COMMAND)
    plan = prepare(sweep, sweep, policy, target=target, output=output, source=source, resources=resources, note=note)
    with contextlib.nullcontext() if stop_after is None else time_limit(stop_after, began):
        return carry_out(plan, policy, resources=resources, limits=limits, trackers=trackers, note=note)


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that is ready to run.

    Attributes:
        sweep: the sweep, with its target resolved and every part checked.
        folder: its folder.
        cost: measured cost of its steps; ``None`` if trials run elsewhere.
    """

    sweep: Sweep
    folder: Path
    cost: Cost | None


def timed(sweep: Sweep, policy: Policy, resources: Resources) -> bool:
    """Return whether steps can be timed beforehand: on this machine, with models that this process can build."""
    return policy.timed and resources.address is None and sweep.trial.workload.name != COMMAND


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
    dry_run: bool = False,
    note: Callable[[str], None] = lambda line: None,
) -> PlannedSweep:
    """Resolve a sweep, and time a few of its steps.

    Args:
        sweep: see :func:`run_sweep`.
        recipe: the recipe of the sweep before any options were applied; it gives the folder its name.
        policy: see :func:`run_sweep`.
        target: see :func:`run_sweep`.
        output: see :func:`run_sweep`.
        source: see :func:`run_sweep`.
        resources: see :func:`run_sweep`.
        timer: child process to time steps in; it is closed.
        give_up: returns the seconds after which the timing is given up; called when it begins.
        dry_run: whether nothing will be run, so that another sweep may be running in the folder.
        note: see :func:`run_sweep`.

    Raises:
        CbsError: as :func:`sweeps.launching.launch.resolve`, and if another sweep is running in the folder.
    """
    with calling_theirs():
        resolved = launch.resolve(sweep, target)
        folder = output if output is not None else launch.output_folder(resolved, recipe, RESULTS)
        if not dry_run:
            check_free(folder)  # before steps are timed, which takes a while
        resolved = started(resolved, folder, source, note)
        if not timed(sweep, policy, resources):
            return PlannedSweep(resolved, folder, None)
        cost = timed_apart(resolved, resources.trial_timeout, timer, give_up())
    if not cost.steps:
        note("note: no step could be timed for lack of memory or time; the duration of the sweep is unknown")
    for doubt in cost.doubts:
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
    """Run a prepared sweep; see :func:`run_sweep`.

    Args:
        plan: the result of :func:`prepare`.
        policy: chooses the next sweep.
        resources: where to run.
        limits: limits after which no trial starts any more.
        trackers: trackers to which every trial is written.
        progress: displays what happens; ``None`` for no output.
        command: the command line, which is stored.
        ahead: the Ray of ``resources``, if it is already being started; one Ray serves all sweeps of the plan.
        note: called with each line of information for the user if there is no ``progress``.
    """
    silence = resources.trial_timeout or patience(plan.sweep, plan.cost)

    def run(sweep: Sweep, folder: Path) -> Generator[SweepRun, None, Search]:
        return launch.sweep(
            sweep,
            folder,
            patience=silence,
            progress=progress,
            command=command,
            limits=limits,
            trackers=trackers,
        )

    told = note if progress is None else progress.note
    gpus = 0 if plan.sweep.trial.device == "cpu" else device.count()
    workers = resources.parallel(gpus) if resources.address is None else 0  # of a cluster it is not known here
    underway = Underway(plan.sweep, plan.folder, limits, told, workers)
    with contextlib.ExitStack() as context:
        ahead = ahead or context.enter_context(PrestartedRay())
        runs = Runs(_following(policy, underway, run))
        if runs.run is None:
            return runs.outcome
        from sweeps.running.tuning import run_all  # imports Ray

        return run_all(runs, resources, ahead)


def follow(
    policy: Policy,
    sweep: Sweep,
    folder: Path,
    run: Callable[[Sweep, Path], Search],
    limits: Limits,
    note: Callable[[str], None] = lambda line: None,
    workers: int = 0,
) -> SweepReport:
    """Run the sweeps of a policy, one after the other, and return its report.

    Args:
        policy: chooses the sweeps.
        sweep: the sweep that the user asked for.
        folder: its folder.
        run: runs the trials of a sweep that a folder does not yet contain.
        limits: limits after which no trial starts any more.
        note: called with each line of information for the user.
        workers: as in :class:`~sweeps.launching.policies.Underway`.
    """

    def at_once(part: Sweep, folder: Path) -> Generator[SweepRun, None, Search]:
        yield from ()
        return run(part, folder)

    return Runs(_following(policy, Underway(sweep, folder, limits, note, workers), at_once)).outcome


def _following(
    policy: Policy, underway: Underway, run: Callable[[Sweep, Path], Generator[SweepRun, None, Search]]
) -> Generator[SweepRun, None, SweepReport]:
    """As :func:`follow`, but ``run`` yields a sweep to whoever runs its trials."""
    while (following := policy.next(underway)) is not None:
        search = yield from run(*following)
        underway.limits.add(search.trials())
        underway.ran.append((search, following[1]))
    return policy.report(underway)
