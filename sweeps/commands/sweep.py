"""``cbs sweep``."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import errors, options
from cbs.registry import completing, listed
from sweeps.commands import panel


def ending_flags(
    precision: Annotated[
        float | None,
        typer.Option(
            help="Half-width of the interval of ln B_crit to reach: 0.2, or 0.35 in quick; none with --batch-sizes."
        ),
    ] = None,
    max_runs: Annotated[
        float | None,
        typer.Option(help="End an optimizer after the examples of this many runs at its B_crit (100)."),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start no trial after this long: 2h, 30m, or seconds."),
    ] = None,
    max_examples: Annotated[
        float | None,
        typer.Option(help="Start no trial after this many examples in total: 1e7.", hidden=True),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this long; the same command resumes.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


def resource_flags(
    workers: Annotated[int | None, typer.Option(help="Trials at a time, at most. Default: one per core.")] = None,
    workers_per_trial: Annotated[
        int,
        typer.Option(help="Processes that share a trial.", hidden=True),
    ] = 1,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(help="GPUs per trial, e.g. 0.25. Default: 1 per process."),
    ] = None,
    launch: Annotated[
        str, typer.Option(help="Starts a --command as a job and waits for it: 'sbatch --wait ...'.", hidden=True)
    ] = "",
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster, or auto.", hidden=True)] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Accept a cluster that anybody can command, without a token.", hidden=True),
    ] = False,
) -> dict[str, Any]:
    """Return the given options as keyword arguments of :class:`sweeps.running.resources.Resources`."""
    return dict(locals())


def program_flags(
    command: Annotated[
        str | None,
        typer.Option(
            help="The program, with {batch_size}, {lr}, {seed} and {folder} where their values go. Needs --metric, "
            "--direction, --metric-unit, --example-unit.",
        ),
    ] = None,
    reads: Annotated[
        str,
        typer.Option(
            help="Its log: report, csv, tensorboard, nanogpt, 'stdout(step=..., metric=...)', ...",
            show_default=False,
            hidden=True,
        ),
    ] = "report",
    metric: Annotated[str | None, typer.Option(help="Its metric; of a workload, a further one.", hidden=True)] = None,
    direction: Annotated[str | None, typer.Option(help="Better is below or above the target.", hidden=True)] = None,
    metric_unit: Annotated[
        str | None, typer.Option(help="Unit of the metric, such as nats/token.", hidden=True)
    ] = None,
    example_unit: Annotated[
        str | None, typer.Option(help="What one example is, such as sequence.", hidden=True)
    ] = None,
    tokens_per_example: Annotated[int | None, typer.Option(help="Tokens in an example.", hidden=True)] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="Name of a column in the log. Repeatable.", hidden=True),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="What {resume} becomes in a resumed trial.", hidden=True),
    ] = None,
) -> dict[str, Any]:
    """Return the given options as arguments of :func:`sweeps.external.asked.program_of`."""
    given = dict(locals())
    return given | {"columns": given.pop("column")}


def sweep_flags(
    optim: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Optimizer: {listed('cbs.optimizers')}; one of 'cbs optimizers --libraries'; or package.module:name. "
            "With options: 'muon(nesterov=false)'. Repeatable.",
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
    target: Annotated[float | None, typer.Option(help="Value of the validation metric to train to.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="EXAMPLES",
            help="In place of a target, examples that every trial sees: 2e6, 1e6,2e6,4e6 or '64M tokens'.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="In examples: 4,8,16, or 4..512 for powers of two. Default: the sweep finds them."),
    ] = None,
    lrs: Annotated[
        str | None,
        typer.Option(help="1e-3,2e-3, or one per batch size: sqrt:5e-3@32768, 64:1e-3,128:2e-3. Default: a search."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds (3), or a list (0,1,2).")] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Batch-size schedule: {listed('cbs.schedules.batch_size')}, or package.module:name. Repeatable.",
            hidden=True,
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES",
            help="Also tune an option: momentum=0.9,0.95; or run a sweep for each value of a setting. Repeatable.",
            hidden=True,
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RESULTS", help="Start the search at the best learning rates there.", hidden=True
        ),
    ] = None,
    from_checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Start every trial from a checkpoint.", hidden=True),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Others: see 'cbs explain --settings'. Repeatable.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


def output_flags(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep. Default: results/<recipe>.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"Also log to {listed('sweeps.launching.trackers')}. Repeatable.", hidden=True
        ),
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
    """Train a grid of optimizers, batch sizes, learning rates and seeds.

    Results are stored trial by trial; the same command runs what is missing.

    Example: cbs sweep --optim merit --optim adamw --recipe quick

    Example: cbs sweep --workload my_model:Circles --optim adamw --batch-sizes 4..256 --dry-run
    """
    began = time.monotonic()
    local = machines["address"] is None and program["command"] is None
    with errors.status("starting"):
        from sweeps.running.child import Child

        # the child imports the same modules as this process, at the same time
        timer = context.with_resource(Child("sweeps.running.patience")) if local else None
        from sweeps.external.asked import asked_sweep
        from sweeps.launching.policies import POLICIES
        from sweeps.launching.policies.staged import EachSetting, split_axes
        from sweeps.launching.train import limits_of, policy_of, train
        from sweeps.outlook.price import checked_gpu_hour
        from sweeps.recipes import RECIPES
        from sweeps.running.resources import Resources
        from sweeps.spec.combinations import asked_for, refuse
        from sweeps.spec.given_rates import is_rule
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
