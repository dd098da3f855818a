"""``cbs sweep``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.consoles import errors
from analysis.options import options
from cbs.registry import listed
from sweeps.commands import panel
from sweeps.external.flags import program_flags
from sweeps.launching.flags import ending_flags
from sweeps.running.flags import resource_flags
from sweeps.spec.sweep_flags import sweep_flags


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
    began = time.monotonic()
    local = machines["address"] is None and program["command"] is None
    with errors.status("starting"):
        from sweeps.running.child import Child

        # the child imports the same modules as this process, at the same time
        timer = context.with_resource(Child("sweeps.running.trials:warm")) if local else None
        from sweeps.external.asked import asked_sweep
        from sweeps.launching.asked import limits_of, policy_of
        from sweeps.launching.policies import POLICIES
        from sweeps.launching.policies.each_setting import EachSetting, split_axes
        from sweeps.launching.train import train
        from sweeps.outlook.price import checked_gpu_hour
        from sweeps.recipes import RECIPES
        from sweeps.running.resources import Resources
        from sweeps.spec.combinations import asked_for, refuse
        from sweeps.spec.lr_rule import is_rule
        from sweeps.spec.overrides import split

    run_settings, asked["settings"] = split(asked["settings"] or ())
    gpu_hour = checked_gpu_hour(run_settings.pop("gpu_hour", None))
    recipe = RECIPES.make(asked["recipe"])
    named = run_settings.pop("policy", None)
    given = asked["batch_sizes"] or asked["schedule"] or is_rule(asked["lrs"] or "")
    finds = named is None and not given
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
    refuse(asked_for(sweep) | ({"--set gpu_hour"} if gpu_hour else set()))
    train(
        sweep,
        recipe,
        policy,
        Resources(**machines, **run_settings),
        shown,
        context=context,
        limits=limits,
        stop_after=ending["stop_after"],
        target=asked["target"],
        source=asked["from_"],
        gpu_hour=gpu_hour,
        timer=timer,
        began=began,
    )
