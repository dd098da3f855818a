"""``cbs sweep``."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.consoles import errors
from analysis.options import options
from cbs.command_line import command_line
from cbs.registry import listed
from sweeps.commands import panel
from sweeps.external.flags import program_flags
from sweeps.launching.flags import ending_flags
from sweeps.running.flags import resource_flags
from sweeps.spec.sweep_flags import sweep_flags

DRY_RUN_SECONDS, LEAST_TIMING = 22.0, 5.0
"""Seconds after which ``--dry-run`` gives up timing steps, and the least time it spends on timing them."""


def output_flags(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep. Default: results/<recipe>.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Also log to {listed('sweeps.trackers')}. Repeats.", hidden=True),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show trials, examples, estimated time; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


@options(
    asked=panel("What is measured", sweep_flags),
    program=panel("Your own training program", program_flags),
    ending=panel("When it ends", ending_flags),
    machines=panel("Where it runs", resource_flags),
    shown=panel("Output", output_flags),
)
def command(
    context: typer.Context,
    *,
    asked: dict[str, Any],
    program: dict[str, Any],
    ending: dict[str, Any],
    machines: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    """Train a grid of optimizer, batch size, learning rate, seed.

    Results are stored trial by trial; the same command runs what is missing.

    Example: cbs sweep --optim merit --optim adamw --recipe quick

    Example: cbs sweep --workload my_model:Circles --optim adamw --batch-sizes 4..256 --dry-run
    """
    began, output, dry_run = time.monotonic(), shown["output"], shown["dry_run"]
    local = machines["address"] is None and program["command"] is None
    with errors.status("starting"):
        from sweeps.running.child import Child

        # the child imports the same modules as this process, at the same time
        timer = context.with_resource(Child("sweeps.running.trials:warm")) if local else None
        from cbs.compute import device
        from cbs.errors import Unfinished
        from cbs.registry.parsing import parse_duration
        from cbs.trial.store import MANIFEST, Store
        from sweeps.external.asked import asked_sweep, check_there, told_first
        from sweeps.folder.manifest import merged_manifest
        from sweeps.launching.asked import limits_of, policy_of
        from sweeps.launching.loop import carry_out, prepare, timed
        from sweeps.launching.policies import POLICIES
        from sweeps.launching.policies.each_setting import EachSetting, split_axes
        from sweeps.outlook.price import checked_gpu_hour
        from sweeps.outlook.progress import Progress
        from sweeps.recipes import RECIPES
        from sweeps.running.access import check_listening
        from sweeps.running.cluster import Resources
        from sweeps.running.prestart import PrestartedRay
        from sweeps.running.time_limit import time_limit
        from sweeps.spec.overrides import split
        from sweeps.trackers import TRACKERS

    def note(line: str) -> None:
        errors.print(line, markup=False)

    run_settings, asked["settings"] = split(asked["settings"] or ())
    gpu_hour = checked_gpu_hour(run_settings.pop("gpu_hour", None))
    recipe = RECIPES.make(asked["recipe"])
    named = run_settings.pop("policy", None)
    finds = named is None and not any(asked[name] for name in ("batch_sizes", "lr_rule", "schedule"))
    wanted = policy_of(
        ending["precision"],
        ending["max_runs"],
        named,
        budget=asked["budget"] is not None,
        finds=finds,
        more_seeds=not (finds and asked["seeds"]) and (program["command"] is None or "{seed}" in program["command"]),
        usual=recipe.usual_precision,
    )
    outer, asked["axis"] = split_axes(asked["axis"] or ())
    policy = POLICIES.make(wanted.name, **wanted.options)
    if outer:
        policy = EachSetting(lambda: POLICIES.make(wanted.name, **wanted.options), outer)
    limits = limits_of(ending["max_time"], ending["max_examples"])
    sweep = asked_sweep(recipe, asked, program, finds)
    resources = Resources(**machines, **run_settings)
    if program["command"] and resources.address is None:
        check_there(program["command"])
    if resources.launch:
        check_there(resources.launch, "--launch")
    resources.check_devices(sweep.trial.device, command=program["command"] is not None)
    policy.check(sweep, limits=limits, source=asked["from_"])
    for line in told_first(sweep, resources.cpus):
        note(line)
    limit = time_limit(parse_duration(ending["stop_after"], "--stop-after") if ending["stop_after"] else None, began)
    trackers = list(dict.fromkeys(shown["log"] or ()))
    for name in trackers:
        TRACKERS[name]
    if resources.address is not None:
        check_listening(resources.address)
    if not dry_run:
        Store(output or Path("results")).check_writable()
    finished = output is not None and (output / "trials").exists()  # possibly complete, so that Ray is not needed
    early = timed(sweep, policy, resources) and not dry_run and not finished
    ahead = context.with_resource(PrestartedRay(resources)) if early else None
    with errors.status("loading the data and timing a few steps"):
        plan = prepare(
            sweep,
            recipe,
            policy,
            target=asked["target"],
            output=output,
            source=asked["from_"],
            resources=resources,
            timer=timer,
            give_up=lambda: max(LEAST_TIMING, DRY_RUN_SECONDS - (time.monotonic() - began)) if dry_run else math.inf,
            note=note,
        )
    workers = resources.parallel(0 if plan.sweep.trial.device == "cpu" else device.count())
    again = command_line()
    if dry_run:
        if not outer and (plan.folder / MANIFEST).exists():
            merged_manifest(Store(plan.folder), plan.sweep, again)  # refuses what the sweep itself would refuse
        report = policy.preview(plan.sweep, plan.folder, plan.cost, workers, gpu_hour)
        for line in policy.not_counted(report, limits):
            note(line)
    else:
        progress = Progress(errors, workers if policy.timed else 0)
        with limit:
            report = carry_out(
                plan,
                policy,
                resources=resources,
                limits=limits,
                trackers=trackers,
                progress=progress,
                command=again,
                ahead=ahead,
            )
    typer.echo(json.dumps(report.content, indent=2) if shown["as_json"] else "\n".join(report.lines))
    failed = report.content.get("failures", {}).get("trials", 0)
    if failed:
        raise Unfinished(f"{failed} trials failed; to run them again: {again}")
