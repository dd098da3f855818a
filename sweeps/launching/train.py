"""From the options of a command that trains to its report: policy and limits, the checks before anything runs, the run
or its dry run, and what is printed.
"""

# Tests replace classes that annotations name, perhaps before this module is read.
from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from analysis.command_options import errors
from cbs import interrupts
from cbs.compute import device
from cbs.errors import ConfigError, Unfinished
from cbs.registry.choices import Choice, parse_choice
from cbs.registry.commands import command_line
from cbs.registry.values import parse_duration
from cbs.trial.config import COMMAND
from cbs.trial.store import MANIFEST, Store
from sweeps.external.asked import check_there, told_first
from sweeps.external.trainer import ExternalTrainer
from sweeps.folder.manifest import merged_manifest
from sweeps.launching import loop
from sweeps.launching.policies import POLICIES, Policy
from sweeps.launching.trackers import TRACKERS
from sweeps.outlook.progress import Progress
from sweeps.running import access, cluster
from sweeps.running.child import Child
from sweeps.running.resources import Resources
from sweeps.search.search import Limits
from sweeps.spec.combinations import refuse
from sweeps.spec.spec import Sweep


def limits_of(max_time: str | None, max_examples: float | None) -> Limits:
    """Return the limits after which no trial starts any more.

    Raises:
        ConfigError: if an option cannot be read.
    """
    if max_examples is not None and not max_examples > 0:
        raise ConfigError(f"--max-examples must be above 0, got {max_examples:g}")
    return Limits(
        math.inf if max_time is None else time.monotonic() + parse_duration(max_time),
        math.inf if max_examples is None else max_examples,
    )


def policy_of(
    precision: float | None = None,
    runs: float | None = None,
    named: str | None = None,
    *,
    budget: bool = False,
    finds: bool = False,
    more_seeds: bool = True,
    usual: float | None = None,
) -> Choice:
    """Return the policy in :data:`sweeps.launching.policies.POLICIES` that the options ask for.

    Args:
        precision: value of ``--precision``.
        runs: value of ``--max-runs``.
        named: value of ``--set policy=``, a name with options; ``None`` if it was not given.
        budget: whether trials train to a budget.
        finds: whether the sweep has to find its batch sizes, as none were given.
        more_seeds: whether it may use seeds that were not given.
        usual: precision of a sweep that finds its batch sizes, unless it trains to a budget.

    Raises:
        ConfigError: if two options contradict each other.
    """
    asked = {
        "--precision": precision is not None or (finds and named is None),
        "--max-runs": runs is not None,
        "--set policy": named is not None,
        "--budget": budget,
    }
    refuse({name for name, there in asked.items() if there})
    if named is not None:
        return parse_choice(named)
    if precision is None and not finds:
        return Choice(name="once")
    goal = usual if precision is None and not budget else precision
    options = {"goal": goal, "runs": runs, "finds": finds or None, "more_seeds": None if more_seeds else False}
    given = {name: value for name, value in options.items() if value is not None}
    if not budget:
        return Choice(name="precision", options=given)
    for name in POLICIES.names():
        if POLICIES[name].narrows_budgets:
            return Choice(name=name, options=given)
    raise ConfigError("no policy here narrows answers at equal budgets; leave --precision out and give --batch-sizes")


# Seconds after which `--dry-run` gives up timing steps, so that it takes half a minute at most with what comes after;
# and the least time it spends on timing them, if the start alone took longer.
DRY_RUN_SECONDS, LEAST_TIMING = 22.0, 5.0


def note(line: str) -> None:
    """Show a line of information for the user."""
    errors.print(line, markup=False)


def train(
    sweep: Sweep,
    recipe: Sweep,
    policy: Policy,
    resources: Resources,
    shown: dict[str, Any],
    *,
    context: typer.Context,
    limits: Limits | None = None,
    stop_after: str | None = None,
    target: float | None = None,
    source: Path | None = None,
    gpu_hour: float | None = None,
    timer: Child | None = None,
    began: float,
) -> None:
    """Check what is asked for, run it or say what it would run, and print the report.

    Args:
        sweep, recipe, policy, resources, limits, target, source, timer: see :func:`sweeps.launching.loop.prepare`.
        shown: the options of :func:`sweeps.commands.sweep.output_flags`.
        context: the command's; what is started ahead ends with it.
        stop_after: how long the command may take, as typed.
        gpu_hour: dollars for an hour of a GPU.
        began: when the command began, on the monotonic clock.

    Raises:
        CbsError: if something that is asked for is wrong, or trials failed.
    """
    limits, output, dry_run = limits or Limits(), shown["output"], shown["dry_run"]
    theirs = sweep.trial.workload.name == COMMAND
    if theirs and resources.address is None:
        check_there(ExternalTrainer.of(sweep.trial.workload).command)
    if resources.launch:
        check_there(resources.launch, "--launch")
    resources.check_devices(sweep.trial.device, command=theirs)
    policy.check(sweep, limits=limits, source=source)
    for line in told_first(sweep, resources.cpus):
        note(line)
    limit = interrupts.time_limit(parse_duration(stop_after, "--stop-after") if stop_after else None, began)
    trackers = list(dict.fromkeys(shown["log"] or ()))
    for name in trackers:
        TRACKERS[name]
    if resources.address is not None:
        access.check_listening(resources.address)
    if not dry_run:
        Store(output or loop.RESULTS).check_writable()
    finished = output is not None and (output / "trials").exists()  # possibly complete, so that Ray is not needed
    early = loop.timed(sweep, policy, resources) and not dry_run and not finished
    ahead = context.with_resource(cluster.PrestartedRay(resources)) if early else None
    give_up: Callable[[], float] = (
        (lambda: max(LEAST_TIMING, DRY_RUN_SECONDS - (time.monotonic() - began))) if dry_run else lambda: math.inf
    )
    with errors.status("loading the data and timing a few steps"):
        plan = loop.prepare(
            sweep, recipe, policy, target=target, output=output, source=source, resources=resources, timer=timer,
            give_up=give_up, dry_run=dry_run, note=note,
        )  # fmt: skip
    workers, again = resources.parallel(0 if plan.sweep.trial.device == "cpu" else device.count()), command_line()
    if dry_run:
        if policy.stored and (plan.folder / MANIFEST).exists():
            merged_manifest(Store(plan.folder), plan.sweep, again)  # refuses what the sweep itself would refuse
        report = policy.preview(plan.sweep, plan.folder, plan.cost, workers, gpu_hour)
        for line in policy.not_counted(report, limits):
            note(line)
    else:
        progress = Progress(errors, workers if policy.timed else 0)
        with limit:
            report = loop.carry_out(
                plan, policy, resources=resources, limits=limits, trackers=trackers, progress=progress, command=again,
                ahead=ahead,
            )  # fmt: skip
    typer.echo(json.dumps(report.content, indent=2) if shown["as_json"] else "\n".join(report.lines))
    if failed := report.content.get("failures", {}).get("trials", 0):
        raise Unfinished(f"{failed} trials failed; to run them again: {again}")
