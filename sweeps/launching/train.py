"""What the commands that train share: the checks before anything runs, the run or its dry run, and what is printed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from analysis.consoles import errors
from cbs import interrupts
from cbs.compute import device
from cbs.errors import Unfinished
from cbs.registry.commands import command_line
from cbs.registry.values import parse_duration
from cbs.trial.config import COMMAND
from cbs.trial.store import MANIFEST, Store
from sweeps.external.asked import check_there, told_first
from sweeps.external.trainer import ExternalTrainer
from sweeps.folder.manifest import merged_manifest
from sweeps.launching import loop
from sweeps.launching.policies import Policy
from sweeps.outlook.progress import Progress
from sweeps.running import access, prestart
from sweeps.running.child import Child
from sweeps.running.resources import Resources
from sweeps.search.limits import Limits
from sweeps.spec.spec import Sweep
from sweeps.trackers import TRACKERS

DRY_RUN_SECONDS, LEAST_TIMING = 22.0, 5.0
"""Seconds after which ``--dry-run`` gives up timing steps, and the least time it spends on timing them."""


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
    ahead = context.with_resource(prestart.PrestartedRay(resources)) if early else None
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
