"""``cbs branch``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.consoles import errors
from analysis.options import options
from cbs.command_line import command_line
from cbs.registry import completing, listed
from sweeps.commands import panel
from sweeps.commands.sweep import output_flags
from sweeps.external.flags import program_flags
from sweeps.running.flags import resource_flags


def trunk_flags(
    optim: Annotated[
        list[str] | None,
        typer.Option(
            help="Optimizer, as in cbs sweep; each trains its own trunk. Repeats.",
            autocompletion=completing("cbs.optimizers"),
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help=f"One of {listed('sweeps.recipes')}.", show_default=False, autocompletion=completing("sweeps.recipes")
        ),
    ] = "default",
    workload: Annotated[
        str | None,
        typer.Option(
            help=f"{listed('cbs.workloads')}, or package.module:function.", autocompletion=completing("cbs.workloads")
        ),
    ] = None,
    trunk_batch: Annotated[int, typer.Option(help="Batch size of the trunk.")] = 16,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the trunk. Default: the middle of the optimizer's grid.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="EXAMPLES", help="Length of the trunk: 1e5, '64M tokens'.")
    ] = None,
    from_checkpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH@EXAMPLES", help="Checkpoint of your own run, instead of a trunk. Repeats."),
    ] = None,
    trunk_optim: Annotated[
        str | None, typer.Option(help="Start the branches of all optimizers from the trunk of this one.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as in cbs sweep. Repeats."),
    ] = None,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


def branch_flags(
    at: Annotated[
        str, typer.Option(help="Where branches begin: percentages of the trunk, or numbers of examples.")
    ] = "5%,10%,20%,40%,80%",
    factors: Annotated[str, typer.Option(help="Batch sizes as multiples k of the trunk's.")] = "1/4,1/2,1,2,4,8,16",
    window: Annotated[
        str | None,
        typer.Option(metavar="EXAMPLES", help="Examples of a branch, or a percentage of the trunk: 20k, 2%."),
    ] = None,
    lr_rule: Annotated[
        str, typer.Option(metavar="RULE", help="sqrt or linear in k, tried (0.5, 1, 2 times sqrt), or 16:1e-3,32:2e-3.")
    ] = "sqrt",
    warmup: Annotated[int, typer.Option(metavar="EXAMPLES", help="Linear warmup at the start of a branch.")] = 0,
    state: Annotated[str, typer.Option(help="State of the optimizer: keep or reset.")] = "keep",
    seeds: Annotated[str, typer.Option(help="Most seeds of a branch, or a list; with --error 0 all are run.")] = "5",
    error: Annotated[
        float,
        typer.Option(help="Error probability of the sequential test, which decides what runs; 0 runs everything."),
    ] = 0.1,
    within: Annotated[
        float, typer.Option(help="Excess loss up to which a branch is as good in that test, in the unit of the metric.")
    ] = 0.01,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


@options(
    asked=panel("The trunk", trunk_flags),
    branches=panel("The branches", branch_flags),
    program=panel("Your own training program", program_flags),
    machines=panel("Where it runs", resource_flags),
    shown=panel("Output", output_flags),
)
def command(
    *,
    asked: dict[str, Any],
    branches: dict[str, Any],
    program: dict[str, Any],
    machines: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    """Branch from checkpoints of one run, at several batch sizes.

    Trains the run, keeps checkpoints, and continues from each for a short window with k times the batch size. Given
    again, the same command runs only what is missing.

    Example: cbs branch --optim adamw --budget 1e5 --dry-run

    Example: cbs branch --optim adamw --optim muon --budget 1e5 --factors 1,4,16
    """
    with errors.status("starting"):
        from cbs.compute import device
        from cbs.errors import Unfinished
        from cbs.registry.parsing import parse_seeds
        from cbs.trial.store import Store
        from sweeps.external.asked import asked_sweep, check_there, told_first
        from sweeps.launching.loop import carry_out, prepare
        from sweeps.launching.policies.branch import Branch
        from sweeps.outlook.progress import Progress
        from sweeps.recipes import RECIPES
        from sweeps.running.access import check_listening
        from sweeps.running.cluster import Resources
        from sweeps.search.limits import Limits
        from sweeps.spec.overrides import split
        from sweeps.trackers import TRACKERS

    def note(line: str) -> None:
        errors.print(line, markup=False)

    run_settings, settings = split(asked["settings"] or ())
    for key in ("policy", "gpu_hour"):
        run_settings.pop(key, None)
    given = asked.pop("from_checkpoint") or []
    seeds = parse_seeds(branches.pop("seeds"))
    policy = Branch(**branches, trunk_optimizer=asked.pop("trunk_optim") or "", checkpoints=given)
    lr, batch_size = asked.pop("lr"), str(asked.pop("trunk_batch"))
    recipe = RECIPES.make(asked["recipe"]).replace(name="branch")
    absent = dict.fromkeys(("lr_rule", "schedule", "axis", "target", "probe", "from_checkpoint"))
    wanted = (
        absent
        | asked
        | {
            "batch_sizes": batch_size,
            "lrs": None if lr is None else repr(lr),
            "seeds": ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else ""),
            "settings": settings,
            "from_checkpoint": Path(given[0].rpartition("@")[0] or given[0]) if given else None,
        }
    )
    if given and wanted["budget"] is None:
        wanted["budget"] = branches["window"] or "1e9"
    sweep = asked_sweep(recipe, wanted, program)
    resources = Resources(**machines, **run_settings)
    if program["command"] and resources.address is None:
        check_there(program["command"])
    if resources.launch:
        check_there(resources.launch, "--launch")
    resources.check_devices(sweep.trial.device, command=program["command"] is not None)
    policy.check(sweep, limits=Limits(), source=None)
    for line in told_first(sweep, resources.cpus):
        note(line)
    trackers = list(dict.fromkeys(shown["log"] or ()))
    for name in trackers:
        TRACKERS[name]
    if resources.address is not None:
        check_listening(resources.address)
    if not shown["dry_run"]:
        Store(shown["output"] or Path("results")).check_writable()
    with errors.status("loading the data and timing a few steps"):
        plan = prepare(sweep, recipe, policy, output=shown["output"], resources=resources, note=note)
    workers = resources.parallel(0 if plan.sweep.trial.device == "cpu" else device.count())
    again = command_line()
    if shown["dry_run"]:
        report = policy.preview(plan.sweep, plan.folder, plan.cost, workers)
    else:
        report = carry_out(
            plan, policy, resources=resources, limits=Limits(), trackers=trackers,
            progress=Progress(errors, workers), command=again,
        )  # fmt: skip
    typer.echo(json.dumps(report.content, indent=2) if shown["as_json"] else "\n".join(report.lines))
    failed = report.content.get("failures", {}).get("trials", 0)
    if failed:
        raise Unfinished(f"{failed} trials failed; to run them again: {again}")
