"""``cbs noise-scale``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AsJson, Figures, Wide, answer_with, errors, level_of, options
from analysis.config import AnalysisConfig
from cbs.errors import ConfigError
from cbs.registry import completing, listed
from sweeps.commands import Settings


@options(config=level_of)
def command(
    workload: Annotated[
        str,
        typer.Option(
            help=f"Workload: {listed('cbs.workloads')}, or package.module:function.",
            autocompletion=completing("cbs.workloads"),
        ),
    ] = "text",
    optim: Annotated[
        str,
        typer.Option(
            help=f"Optimizer that trains: {listed('cbs.optimizers')}, one of a library, or package.module:name; with "
            "options as 'muon(nesterov=false)'.",
            autocompletion=completing("cbs.optimizers"),
        ),
    ] = "adamw",
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: middle of the optimizer's grid.")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = 64,
    steps: Annotated[int, typer.Option(help="Length of the run, in steps.")] = 256,
    phases: Annotated[int, typer.Option(help="Phases, each as long as all before it.")] = 4,
    probe: Annotated[
        str,
        typer.Option(
            help=f"Source of the small batches: {listed('cbs.noise_scale.sources')}. "
            "auto: split where the model allows it, else accumulation."
        ),
    ] = "auto",
    parts: Annotated[int, typer.Option(help="Number of parts that a batch is split into.")] = 2,
    geometry: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Geometry beside l2: {listed('cbs.noise_scale.geometries')}, matched. Repeatable. Default: all."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Instead of a run: compare one batch with a loop over its examples. Exit code 1 if they differ.",
        ),
    ] = False,
    one_step: Annotated[
        bool,
        typer.Option(
            "--one-step",
            help="Measure what one step along the gradient after the run saves, by batch size. --steps may be 0.",
        ),
    ] = False,
    from_checkpoint: Annotated[
        Path | None, typer.Option(help="With --one-step: checkpoint that the run starts from.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for figure and table. Default: results/noise-scale.")
    ] = None,
    figures: Figures = None,
    wide: Wide = False,
    as_json: AsJson = False,
    *,
    config: AnalysisConfig,
) -> None:
    """Measure the gradient noise scale along a short run.

    Per phase and per geometry, with intervals.

    Example: cbs noise-scale --optim muon --batch-size 64 --steps 256

    Example: cbs noise-scale --workload my_model:Circles --optim adamw --wide
    """
    from rich.progress import Progress

    from extensions.noise_scale import measuring
    from extensions.noise_scale.tables import MeasuredRun

    if config.resamples != AnalysisConfig().resamples:
        raise ConfigError("--resamples: the interval of a noise scale has no draws; leave it out")
    shared: dict[str, Any] = {
        "workload": workload, "optimizer": optim, "batch_size": batch_size, "probe": probe, "parts": parts,
        "seed": seed, "settings": settings or (),
    }  # fmt: skip
    if check:
        report = measuring.check(**shared)
        typer.echo(json.dumps(report.to_json(), indent=2, allow_nan=False) if as_json else report)
        raise typer.Exit(0 if report.ok else 1)
    folder = output if output is not None else Path("results") / "noise-scale"
    answer = answer_with(folder, figures=figures, wide=wide, as_json=as_json)
    if one_step:
        given = {key: shared[key] for key in ("workload", "optimizer", "batch_size", "seed", "settings")}
        with errors.status("taking steps"):
            found = measuring.one_step(
                **given, lr=lr, steps=steps, confidence=config.confidence, from_checkpoint=from_checkpoint
            )
        answer(found, folder)
        return
    if from_checkpoint is not None:
        raise ConfigError("--from-checkpoint goes with --one-step")
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(f"{steps} steps", total=steps)
        run = measuring.measure(
            **shared,
            lr=lr,
            steps=steps,
            phases=phases,
            geometries=["l2", *(geometry or ["matched", "all"])],
            confidence=config.confidence,
            progress=lambda: bar.advance(task),
        )
    answer(MeasuredRun(run), folder)
