"""``cbs throughput``."""

import math
import shlex
from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import errors
from analysis.formatting import plural, with_interval
from cbs.registry import listed

PANEL = "Measure"


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS_OR_RECIPE",
            help=f"Folder or recipe with the workload and optimizers to time; recipes: {listed('sweeps.recipes')}.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Table to write (CSV).")] = Path("throughput.csv"),
    batch_sizes: Annotated[
        str | None, typer.Option(help="Batch sizes in examples: 4,8,16 or 4..512. Default: those of the source.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on each batch size.")] = 1.0,
    code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE.MODULE:NAME",
            help="Custom workload or optimizer, named in the results, that is allowed to run. Repeatable.",
        ),
    ] = None,
) -> None:
    """Time the training steps of a sweep on this machine.

    One row per optimizer and batch size, with a confidence interval. All are timed in turn, five times.

    Example: cbs throughput results/quick -o throughput.csv --batch-sizes 4..512

    Example: cbs throughput results/ --seconds 5
    """
    with errors.status("starting"):
        from analysis.read.throughput import StepTime
        from cbs.errors import ConfigError
        from cbs.registry.values import parse_batch_sizes
        from extensions.recommending.step_times import measured_apart, write_step_times

    sizes = None if batch_sizes is None else list(parse_batch_sizes(batch_sizes))

    def timing_line(timing: StepTime) -> str:
        about, took = f"{timing.optimizer}, batch size {timing.batch_size}", "does not fit in memory"
        if math.isfinite(timing.seconds):
            took = f"{with_interval(timing.seconds, timing.interval or (None, None))} s per step"
            took += f", {plural(timing.repetitions, 'repetition')}"
        return f"{about}: {took}"

    with errors.status("timing steps") as shown:
        timings = measured_apart(
            source, sizes, seconds=seconds, code=code or (), report=lambda t: shown.update(timing_line(t))
        )
    for timing in timings:
        errors.print(timing_line(timing), markup=False)
    rows = [timing for timing in timings if math.isfinite(timing.seconds)]
    if not rows:
        raise ConfigError("no batch size fits in memory; give smaller ones with --batch-sizes")
    write_step_times(rows, output)
    typer.echo(output)
    if Path(source).is_dir():
        typer.echo(f"next: cbs recommend {shlex.quote(str(source))} --throughput {shlex.quote(str(output))}")
