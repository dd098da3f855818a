"""The command ``cbs``. Every command mirrors one function of the library and adds only parsing and printing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import cbs
from cbs.errors import CbsError, ConfigError

app = typer.Typer(
    name="cbs",
    help="How large a batch can an optimizer use? Sweep, then analyze.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
errors = Console(stderr=True, highlight=False)

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What an unknown flag or a malformed value raises; typer brings a click of its own and exports only the subclass."""

DISTRIBUTION = "critical-batch-size"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """How large a batch can an optimizer use? Sweep, then analyze.

    Example: cbs sweep --optim merit --optim adamw --recipe quick && cbs analyze results/
    """
    if version:
        typer.echo(f"cbs {cbs.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def sweep(
    optim: Annotated[list[str] | None, typer.Option("--optim", help="Optimizer; repeat for several.")] = None,
    recipe: Annotated[str, typer.Option(help="Which sweep to start from: quick or default.")] = "default",
    batch_sizes: Annotated[
        str | None, typer.Option(help="Batch sizes in examples: 4,8,16 or 4..512 for powers of two.")
    ] = None,
    lrs: Annotated[str | None, typer.Option(help="Exactly these learning rates: 1e-3,2e-3. Default: search.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds (3), or a list (0,1,2).")] = None,
    target: Annotated[float | None, typer.Option(help="Value of the validation metric to train to.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload: a name, or package.module:function.")] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            help="Where the noise scale of every step comes from: split, accumulation, per_example, norm_layers, none. "
            "Default: split where the model allows it, else accumulation."
        ),
    ] = None,
    diagnostic: Annotated[
        list[str] | None,
        typer.Option(
            "--diagnostic", metavar="NAME", help="Record this of every step, too: max_attention_logit. Repeats."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. workload.size=200k. Repeats."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep. Default: results/<recipe>.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Most trials at a time. Default: one per core.")] = None,
    cpus_per_trial: Annotated[int, typer.Option(help="Cores of a trial.")] = 1,
    gpus_per_trial: Annotated[
        float | None, typer.Option(help="Share of a GPU per trial. Default: 1 where there is one.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster, or auto.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show trials, examples and estimated time; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")] = False,
) -> None:
    """Train a grid over optimizer x batch size x learning rate x seed.

    Results are stored trial by trial; the same command again runs only what is missing.

    Example: cbs sweep --optim merit --optim adamw --recipe quick
    """
    with errors.status("starting"):
        import torch

        from sweeps.cluster import Resources, check_listening
        from sweeps.estimate import measure_cost
        from sweeps.launch import output_folder, resolve
        from sweeps.launch import sweep as run_sweep
        from sweeps.overrides import override
        from sweeps.parsing import parse_batch_sizes, parse_numbers, parse_seeds
        from sweeps.progress import Progress
        from sweeps.recipes import RECIPES
        from sweeps.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report

    base = RECIPES[recipe]()
    asked = base
    if optim:
        asked = asked.replace(optimizers=tuple(cbs.Choice(name=name) for name in dict.fromkeys(optim)))
    if batch_sizes is not None:
        asked = asked.replace(batch_sizes=parse_batch_sizes(batch_sizes))
    if lrs is not None:
        asked = asked.replace(lrs=parse_numbers(lrs, "--lrs", float))
    if seeds is not None:
        asked = asked.replace(seeds=parse_seeds(seeds))
    if workload is not None and workload != asked.workload.name:
        asked = asked.replace(workload=cbs.Choice(name=workload), target=None, expected=None)
    if diagnostic:
        asked = asked.replace(diagnostics=tuple(dict.fromkeys(diagnostic)))
    asked = override(asked, [*([] if probe is None else [f"probe={probe}"]), *(settings or ())])
    resources = Resources(
        workers=workers, cpus_per_trial=cpus_per_trial, gpus_per_trial=gpus_per_trial, address=address
    )
    if address is not None:
        check_listening(address)
    with errors.status("loading the data and timing a few steps"):
        planned = resolve(asked, target)
        folder = output if output is not None else output_folder(planned, base, Path("results"))
        cost = measure_cost(planned) if address is None else None
    parallel = resources.parallel(0 if planned.device == "cpu" else torch.cuda.device_count())
    if dry_run:
        report = dry_run_report(planned, folder, cost, parallel)
        typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(dry_run_lines(report)))
        return
    progress = Progress(errors, cost, parallel)
    command = shlex.join(["cbs", *sys.argv[1:]])
    search = run_sweep(planned, folder, resources=resources, progress=progress, command=command)
    report = outcome_report(search, folder)
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(outcome_lines(report)))


@app.command()
def optimizers(
    names: Annotated[list[str] | None, typer.Argument(help="Show everything about these. Default: a list.")] = None,
    workload: Annotated[
        str | None, typer.Option(help="Show which of its parameters the matrix part of these optimizers takes.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. muon.matrices=all. Repeats."),
    ] = None,
    libraries: Annotated[
        bool, typer.Option("--libraries", help="List those of torch.optim and pytorch-optimizer, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON on standard output.")] = False,
) -> None:
    """List the optimizers: family, paper, options, learning rates, memory, geometry of the noise scale.

    Example: cbs optimizers muon --workload text
    """
    with errors.status("counting the state of each optimizer"):
        from cbs.optimizers import OPTIMIZERS
        from cbs.optimizers.catalogue import catalogue
        from sweeps.listing import details, overview, routed, routing_json, routing_table
        from sweeps.overrides import override
        from sweeps.recipes import RECIPES

        if names is None and (workload or settings):
            raise ConfigError("--workload and --set need the names of optimizers, as in: cbs optimizers muon")
        entries = catalogue(names)
        if libraries and names is None:
            own = set(OPTIMIZERS.names())
            further = [name for name in OPTIMIZERS.more_names() if "." not in name or name.split(".")[1] in own]
            entries += catalogue(further, measured=False)
        routings = {}
        if names:
            asked = RECIPES["default"]().replace(optimizers=tuple(cbs.Choice(name=name) for name in names))
            if workload:
                asked = asked.replace(workload=cbs.Choice(name=workload))
            routings = routed(override(asked, settings or ())) if workload else {}
    if as_json:
        shown = [entry.to_json() for entry in entries]
        for row in shown:
            if row["name"] in routings:
                row["routing"] = routing_json(routings[row["name"]])
        typer.echo(json.dumps(shown, indent=2, allow_nan=False))
        return
    from analysis.commands import console as standard_output

    console = standard_output()
    if names is None:
        console.print(overview(entries))
        return
    for place, entry in enumerate(entries):
        console.print(*([""] if place else []), details(entry), sep="\n")
        if entry.name in routings:
            console.print("", routing_table(routings[entry.name]), sep="\n")


@app.command("noise-scale")
def noise_scale(
    workload: Annotated[str, typer.Option(help="Workload: a name, or package.module:function.")] = "text",
    optim: Annotated[str, typer.Option("--optim", help="Optimizer that trains.")] = "adamw",
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: middle of the optimizer's grid.")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = 64,
    steps: Annotated[int, typer.Option(help="Length of the run, in steps.")] = 256,
    phases: Annotated[int, typer.Option(help="Phases, each as long as all before it.")] = 4,
    probe: Annotated[
        str,
        typer.Option(
            help="Where the small batches come from: split, accumulation, per_example, norm_layers. "
            "auto: split where the model allows it, else accumulation."
        ),
    ] = "auto",
    groups: Annotated[int, typer.Option(help="Groups a batch is split into.")] = 2,
    geometry: Annotated[
        list[str] | None,
        typer.Option("--geometry", help="Beside l2: l1, nuclear, preconditioned, matched. Repeats. Default: all."),
    ] = None,
    hessian: Annotated[
        int, typer.Option(metavar="DRAWS", help="Batches per phase for the Hessian-weighted scale; 0 for none.")
    ] = 0,
    layers: Annotated[bool, typer.Option("--layers", help="Show every layer, too.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. workload.size=200k. Repeats."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for figure and table. Default: results/noise-scale.")
    ] = None,
    figures: Annotated[bool, typer.Option(help="Draw the figure.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Measure the gradient noise scale along a short run: per phase and per geometry, with intervals.

    Example: cbs noise-scale --optim muon --batch-size 64 --steps 256
    """
    with errors.status("starting"):
        import dataclasses

        from rich.progress import Progress

        from analysis.present import noise_scale_run
        from cbs.noise_scale.run import measure_run
        from sweeps.cell import Cell
        from sweeps.launch import resolve
        from sweeps.overrides import override
        from sweeps.recipes import RECIPES
        from sweeps.workload import built

    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"--confidence must be between 0 and 1, got {confidence:g}")
    asked = RECIPES["default"]().replace(
        optimizers=(cbs.Choice(name=optim),),
        batch_sizes=(batch_size,),
        seeds=(seed,),
        probe=cbs.Choice(name=probe, options={"groups": groups, "geometry": ["l2", *(geometry or ["matched", "all"])]}),
    )
    if workload != asked.workload.name:
        asked = asked.replace(workload=cbs.Choice(name=workload), target=None, expected=None)
    with errors.status("loading the data"):
        asked = resolve(override(asked, settings or ()))
    grid = asked.lr_grid(optim)
    config = asked.trial(Cell(optim, batch_size, seed), grid[len(grid) // 2] if lr is None else lr)
    config = dataclasses.replace(config, max_steps=steps)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(f"{steps} steps", total=steps + phases * hessian)
        run = measure_run(
            config,
            workload=built(config.workload),
            phases=phases,
            hessian_draws=hessian,
            confidence=confidence,
            progress=lambda: bar.advance(task),
        ).to_json()
    folder = output if output is not None else Path("results") / "noise-scale"
    files = noise_scale_run.write(run, folder, figures=figures)
    if as_json:
        typer.echo(json.dumps(run, indent=2, allow_nan=False))
        return
    from analysis.commands import console as standard_output

    console = standard_output()
    console.print(noise_scale_run.terminal_table(run, confidence=confidence))
    if layers:
        console.print(noise_scale_run.layer_table(run, confidence=confidence))
    console.print(f"files: {', '.join(map(str, files))}", markup=False, soft_wrap=True)


@app.command()
def throughput(
    source: Annotated[str, typer.Argument(metavar="RESULTS_OR_RECIPE", help="Whose workload and optimizers to time.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Table to write (CSV).")] = Path("throughput.csv"),
    batch_sizes: Annotated[
        str | None, typer.Option(help="Batch sizes in examples: 4,8,16 or 4..512. Default: those of the source.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on each batch size.")] = 1.0,
) -> None:
    """Time the training steps of a sweep on this machine, one row per optimizer and batch size.

    Example: cbs throughput results/quick -o throughput.csv --batch-sizes 4..512
    """
    rows = probe_steps(source, batch_sizes, seconds)
    from analysis.read.throughput import write_throughput

    write_throughput(rows, output)
    typer.echo(output)


@app.command()
def recommend(
    results: Annotated[Path, typer.Argument(help="A sweep, or a folder of sweeps.")] = Path("results"),
    devices: Annotated[int, typer.Option(help="Most devices that may be used.")] = 1,
    target: Annotated[
        list[float] | None, typer.Option("--target", help="Target value; repeat for several. Default: the sweep's.")
    ] = None,
    throughput: Annotated[Path | None, typer.Option(help="Table of step times (CSV or Parquet).")] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Instead of a table: time a few steps on this machine.")
    ] = False,
    save_throughput: Annotated[Path | None, typer.Option(help="Keep what --probe measured as a table.")] = None,
    examples_per_second_per_device: Annotated[
        float | None, typer.Option(help="Instead of a table: assume so many examples per second and device.")
    ] = None,
    max_batch_per_device: Annotated[int | None, typer.Option(help="Most examples a device takes in a step.")] = None,
    step_latency: Annotated[float, typer.Option(help="Seconds of a step whatever the batch size.")] = 0.0,
    price: Annotated[float | None, typer.Option(help="Of a device for an hour. Default: that of the table.")] = None,
    price_ratio: Annotated[
        float | None, typer.Option(help="Device-hours that it is worth to be done an hour sooner.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for files. Default: RESULTS/analysis/recommend.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.")] = 2000,
    figures: Annotated[bool, typer.Option(help="Draw the figure.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Which batch size to train with: least time, least cost, least data, and what twice the devices buy.

    Example: cbs recommend results/ --target 2.4 --devices 8 --throughput throughput.csv
    """
    from analysis.commands import console
    from analysis.config import AnalysisConfig
    from analysis.present.recommendation import recommend
    from analysis.questions.recommendation.plans import Wish
    from analysis.read.throughput import Measured, choose_throughput, write_throughput

    wish = Wish(devices=devices, price=price, price_ratio=price_ratio)
    config = AnalysisConfig(confidence=confidence, resamples=resamples)
    times = choose_throughput(throughput, examples_per_second_per_device, max_batch_per_device, step_latency)
    if (times is None) != probe or (save_throughput is not None and not probe):
        raise ConfigError(
            "give one of --throughput, --probe (--save-throughput needs it) and --examples-per-second-per-device"
        )
    if times is None:
        rows = probe_steps(str(results), None, 1.0)
        times = Measured(tuple(rows), "a short run on this machine")
        if save_throughput is not None:
            write_throughput(rows, save_throughput)
    report = recommend(results, times, wish, targets=target or None, config=config, output=output, figures=figures)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, allow_nan=False))
        return
    report.print(console())


def probe_steps(source: str, batch_sizes: str | None, seconds: float) -> list[Any]:
    """Step times of a folder of results or a recipe on this machine; what does not fit in memory is left out."""
    with errors.status("loading the data"):
        from analysis.read.throughput import StepTime
        from sweeps.parsing import parse_batch_sizes
        from sweeps.throughput import Timing, examples_of, measure_throughput

        configs, sizes = examples_of(source)
    if batch_sizes is not None:
        sizes = list(parse_batch_sizes(batch_sizes))

    def report(timing: Timing) -> None:
        took = "does not fit in memory" if timing.seconds is None else f"{timing.seconds:.3g} s per step"
        errors.print(f"{timing.optimizer}, batch size {timing.batch_size}: {took}", markup=False)

    timings = measure_throughput(configs, sizes, seconds=seconds, report=report)
    rows = [StepTime(optimizer=t.optimizer, batch_size=t.batch_size, seconds=t.seconds) for t in timings if t.seconds]
    if not rows:
        raise ConfigError("no batch size fits in memory; give smaller ones with --batch-sizes")
    return rows


def neighbours() -> None:
    """Check that ``sweeps`` and ``analysis`` are the ones installed with this command.

    Both are common names; another distribution may put its own package in front of ours, or on top of it.

    Raises:
        ConfigError: naming the path of the rival.
    """
    home = Path(__file__).resolve().parent
    for name in ("sweeps", "analysis"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        ours = home / name / "__init__.py"
        if origin != ours:
            where = origin or (list(spec.submodule_search_locations or []) if spec is not None else "nowhere")
            problem = f"another package called {name!r} is in the way at {where} (ours belongs at {ours.parent})"
        elif f'"{DISTRIBUTION}"' not in ours.read_text():
            problem = f"another package called {name!r} has overwritten ours at {ours}"
        else:
            continue
        raise ConfigError(f"{problem}; remove it, or install {DISTRIBUTION} into a virtual environment of its own")


def main() -> None:
    """Entry point: one clear line and exit code 2 for anything a person can put right."""
    try:
        neighbours()
        from analysis.commands import add_to

        add_to(app)
        status = app(standalone_mode=False)
    except CbsError as error:
        from_signal = type(error).__name__ == "Interrupted"
        errors.print(f"cbs: {error}", markup=False, soft_wrap=True)
        sys.exit(130 if from_signal else 2)
    except UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "cbs"
        message = error.format_message()  # type: ignore[attr-defined]
        errors.print(f"cbs: {message} See '{path} --help'.", markup=False, soft_wrap=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        errors.print("cbs: stopped", markup=False)
        sys.exit(130)
    if status == 130:  # typer's own answer to Ctrl-C
        errors.print("cbs: stopped", markup=False)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
