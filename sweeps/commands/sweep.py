"""``cbs sweep``."""

from __future__ import annotations

import functools
import json
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands import options
from analysis.consoles import errors
from cbs.registry import listed
from sweeps.commands import AsJson, Settings
from sweeps.external.flags import program_flags

DRY_RUN_SECONDS, LEAST_TIMING = 22.0, 5.0
"""After so many seconds ``--dry-run`` goes without the time it was measuring, for which it waits at least as long."""


@options(program=program_flags)
def command(
    context: typer.Context,
    *,
    optim: Annotated[
        list[str] | None,
        typer.Option(
            "--optim",
            help=f"Optimizer; repeat for several: {listed('cbs.optimizers')}, one of a library (see cbs "
            "optimizers --libraries), or your own package.module:name; with options as 'muon(nesterov=false)'. "
            "Default: that of the recipe.",
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help=f"Which sweep to start from: {listed('sweeps.recipes')}.")] = "default",
    batch_sizes: Annotated[
        str | None, typer.Option(help="Batch sizes in examples: 4,8,16 or 4..512 for powers of two.")
    ] = None,
    lrs: Annotated[
        str | None, typer.Option(help="Exactly these learning rates on every seed: 1e-3,2e-3. Default: search.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="bracket: from the optimizer's default on, until the best learning rate has a worse one on either "
            "side, with few trials; grid: all of the optimizer's learning rates on every seed."
        ),
    ] = None,
    lr_resolution: Annotated[
        float | None,
        typer.Option(
            help="Smallest ratio of two learning rates of a search, which are a factor of 2 apart at first: 1.04."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds (3), or a list (0,1,2).")] = None,
    target: Annotated[float | None, typer.Option(help="Value of the validation metric to train to.")] = None,
    workload: Annotated[
        str | None, typer.Option(help=f"Workload: {listed('cbs.workloads')}, or package.module:function.")
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            help=f"Where the noise scale of every step comes from: {listed('cbs.noise_scale.sources')}, or none. "
            "Default: split where the model allows it, else accumulation."
        ),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help=f"Batch-size schedule; repeat for several: {listed('cbs.schedules.batch_size')}, or your own "
            "package.module:name; with options as 'seesaw(alpha=1.5)' or --set schedule.alpha=1.5. Default: constant.",
        ),
    ] = None,
    diagnostic: Annotated[
        list[str] | None,
        typer.Option(
            "--diagnostic",
            metavar="NAME",
            help=f"Record this of every step, too: {listed('cbs.diagnostics')}. Repeats.",
        ),
    ] = None,
    telescope: Annotated[
        str | None,
        typer.Option(
            "--telescope",
            metavar="WIDTHS",
            help="Carry the best learning rate across these widths of a workload in muP, on grids of 8, 5, 3 and 1: "
            "16..128 or 256,512,1024.",
        ),
    ] = None,
    program: dict[str, Any],
    precision: Annotated[
        float | None,
        typer.Option(
            help="Go on, with what cbs analyze --suggest proposes, until the half-width of the interval of ln B_crit, "
            "ln(high/low)/2, is at most this: 0.15 is about 15 % to either side."
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="No trial starts after this long: 2h, 30m, or seconds; those that run end."),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RESULTS",
            help="Start the search where the learning rates of these results say; also of another width or an import.",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="OPTION=VALUES",
            help="Tune this option of the optimizers with the learning rate, at every batch size: "
            "momentum=0.9,0.95,0.98. Repeats.",
        ),
    ] = None,
    max_examples: Annotated[
        float | None,
        typer.Option(
            help="No trial starts once all trials of the sweep together, earlier runs of it included, have taken this "
            "many examples, such as 1e7; those that run end. (--set max_examples is the budget of one trial.)"
        ),
    ] = None,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Add smaller and larger batch sizes until both sides of the curve are seen, as --precision does "
            "before all else.",
        ),
    ] = False,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep. Default: results/<recipe>.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Most trials at a time. Default: one per core.")] = None,
    workers_per_trial: Annotated[
        int, typer.Option(help="Processes that train a trial together, each with a GPU of its own where there are any.")
    ] = 1,
    shard: Annotated[
        bool, typer.Option("--shard", help="Each of them holds a part of the model (FSDP2), not all of it (DDP).")
    ] = False,
    cpus_per_trial: Annotated[int, typer.Option(help="Cores of each of them.")] = 1,
    gpus_per_trial: Annotated[
        float | None, typer.Option(help="Share of a GPU per trial. Default: 1 per worker where there is one.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster, or auto.")] = None,
    trial_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds without a step or an evaluation after which a trial is stopped. Default: 100 times the "
            "longest planned, at least 300."
        ),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this long, for queues with a time limit: 11h, 55m, or seconds. Trials under way go on "
            "from their last checkpoint with the same command.",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            metavar="NAME",
            help=f"Write every trial to this experiment tracker, too: {listed('sweeps.trackers')}. Repeats.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show trials, examples and estimated time; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a grid of optimizer, batch size, learning rate, seed.

    Results are stored trial by trial; the same command again runs only what is missing.

    Example: cbs sweep --optim merit --optim adamw --recipe quick

    Learning rates searched from where those of another sweep lie: cbs sweep --optim adamw --from results/narrow

    Momentum tuned with the learning rate at every batch size: cbs sweep --optim sgd --axis momentum=0.9,0.95,0.98

    Until B_crit is known to about 15 %: cbs sweep --optim adamw --precision 0.15 --max-time 2h

    A program of yours: cbs sweep --command 'python train.py --batch {batch_size} --lr {lr} --seed {seed} --out
    {folder}' --reads jsonl --metric eval_loss --direction below --target 3.2 --metric-unit nats/token --example-unit
    sequence --optim adamw --batch-sizes 64..1024
    """
    began = time.monotonic()
    timed = address is None and telescope is None and program["command"] is None
    with errors.status("starting"):
        from sweeps.running.child import Child

        # it imports the same as this process, at the same time
        timer = context.with_resource(Child("sweeps.running.trials:warm")) if timed else None
        from cbs.compute import device
        from cbs.errors import ConfigError, Unfinished
        from cbs.registry.parsing import parse_batch_sizes, parse_duration
        from cbs.trial.store import Store
        from sweeps.external.asked import program_of
        from sweeps.external.trainer import trained_by
        from sweeps.folder.manifest import all_code_changes
        from sweeps.launching import launch
        from sweeps.launching import telescoping as stages
        from sweeps.launching.precision import check_goal, to_precision
        from sweeps.outlook.progress import Progress
        from sweeps.outlook.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report, write_reasons
        from sweeps.recipes import RECIPES
        from sweeps.running.ahead import Ahead
        from sweeps.running.cluster import Resources, check_listening
        from sweeps.running.patience import patience, timed_apart
        from sweeps.running.time_limit import time_limit
        from sweeps.search.limits import Limits
        from sweeps.search.warm_start import started
        from sweeps.spec.axes import with_axes
        from sweeps.spec.flags import with_flags
        from sweeps.spec.overrides import override
        from sweeps.spec.workload import calling_theirs
        from sweeps.trackers import TRACKERS

    limits = Limits(
        math.inf if max_time is None else time.monotonic() + parse_duration(max_time),
        math.inf if max_examples is None else max_examples,
    )
    if not limits.examples > 0:
        raise ConfigError(f"--max-examples must be above 0, got {limits.examples:g}")
    adding = precision is not None or auto
    if telescope is not None:
        stages.check_alone(
            adding=adding or max_time is not None or max_examples is not None,
            axes=bool(axis or from_),
        )
    base = RECIPES.make(recipe)
    asked = with_flags(
        base,
        optim=optim,
        batch_sizes=batch_sizes,
        lrs=lrs,
        search=search,
        lr_resolution=lr_resolution,
        seeds=seeds,
        schedule=schedule,
        diagnostic=diagnostic,
    )
    if workload is not None:
        asked = asked.on(workload)
    trainer = program_of(
        **program,
        target=target,
        optimizers=optim,
        batch_sizes=batch_sizes,
        refused={"--workload": workload, "--probe": probe, "--diagnostic": diagnostic, "--telescope": telescope},
    )
    asked = with_axes(asked, axis or ())
    if trainer is None:
        asked = override(asked, [*([] if probe is None else [f"probe={probe}"]), *(settings or ())])
    else:
        asked = trained_by(trainer, asked, target, settings or ())
    resources = Resources(
        workers=workers,
        workers_per_trial=workers_per_trial,
        shard=shard,
        cpus_per_trial=cpus_per_trial,
        gpus_per_trial=gpus_per_trial,
        address=address,
        trial_timeout=trial_timeout,
    )
    resources.check_devices(asked.device, command=trainer is not None)
    if adding:
        check_goal(asked, precision)
    limit = time_limit(None if stop_after is None else parse_duration(stop_after, "--stop-after"), began)
    trackers = list(dict.fromkeys(log or ()))
    for name in trackers:
        TRACKERS[name]
    if address is not None:
        check_listening(address)
    if not dry_run:
        Store(output or Path("results")).check_writable()
    finished = output is not None and (output / "trials").exists()  # perhaps: then Ray is not needed
    ahead = context.with_resource(Ahead(resources)) if timed and not dry_run and not finished else None
    with errors.status("loading the data and timing a few steps"), calling_theirs():
        planned = launch.resolve(asked, target)
        folder = output if output is not None else launch.output_folder(planned, base, Path("results"))
        if telescope is None:
            planned = started(planned, folder, from_, functools.partial(errors.print, markup=False))
        give_up = max(LEAST_TIMING, DRY_RUN_SECONDS - (time.monotonic() - began)) if dry_run else math.inf
        cost = timed_apart(planned, trial_timeout, timer, give_up) if timed else None
        if timed and cost is None:
            errors.print("note: no step was timed, for want of memory or of time; how long the sweep takes is unknown")
    for doubt in cost.doubts if cost is not None else ():
        errors.print(f"note: {doubt}", markup=False)
    told = shlex.join(["cbs", *sys.argv[1:]])
    if telescope is not None:
        widths = parse_batch_sizes(telescope, "--telescope")
        if dry_run:
            with calling_theirs():
                report = stages.planned(planned, widths, folder)
            lines = stages.planned_lines(report)
        else:
            with limit, calling_theirs():
                shown = Progress(errors, 0)
                report = stages.telescope(
                    planned, widths, folder, resources=resources, progress=shown, command=told, trackers=trackers
                )
            lines = stages.report_lines(report)
        typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(lines))
        return
    parallel = resources.parallel(0 if planned.device == "cpu" else device.count())
    if dry_run:
        report = dry_run_report(planned, folder, cost, parallel)
        if precision is not None:
            report["precision"] = precision
            errors.print(f"what --precision {precision:g} adds follows from how these trials end, and is not counted")
        elif auto:
            errors.print("what --auto adds follows from how these trials end, and is not counted")
        if (report.get("examples") or 0) > limits.examples:
            errors.print(f"--max-examples {limits.examples:,.0f} is expected to end it before its last trial")
        typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(dry_run_lines(report)))
        return
    progress = Progress(errors, parallel)
    run = functools.partial(
        launch.sweep,
        output=folder,
        resources=resources,
        progress=progress,
        command=told,
        patience=patience(planned, cost),
        trackers=trackers,
        limits=limits,
        ahead=ahead,
    )
    if adding:
        with limit:
            done = to_precision(planned, precision, folder, run, limits=limits, say=progress.note)
        searches = done.searches
        report = outcome_report(searches[0], folder, searches[1:], limits) | done.to_json()
        write_reasons(report["trials"], folder)
    else:
        with limit:
            report = outcome_report(run(planned), folder, limits=limits)
    report["code_changes"] = all_code_changes(Store(folder))
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(outcome_lines(report)))
    if report["failures"]["trials"]:
        raise Unfinished(f"{report['failures']['trials']} trials failed; to run them again: {told}")
