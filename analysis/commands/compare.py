"""``cbs compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.commands import (
    AsJson,
    ExamplesPerSecond,
    MaxBatch,
    ResultsPath,
    StepLatency,
    Targets,
    VenueName,
    answer,
    configured,
)
from analysis.config import AnalysisConfig


@configured
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Optimizer that the others are compared with. Default: adamw where it is there, else the first."
        ),
    ] = None,
    throughput: Annotated[
        Path | None, typer.Option(help="Table of step times (CSV or Parquet), for the compute-time plane.")
    ] = None,
    examples_per_second_per_device: ExamplesPerSecond = None,
    max_batch_per_device: MaxBatch = None,
    step_latency: StepLatency = 0.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for tables and figures. Default: RESULTS/analysis/compare."),
    ] = None,
    *,
    config: AnalysisConfig,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    venue: VenueName = "default",
    as_json: AsJson = False,
) -> None:
    """Optimizers side by side: token ratio, which critical batch size is the larger, compute-time plane.

    Example: cbs compare results/ --reference adamw --throughput throughput.csv
    """
    from analysis.questions.comparison.result import compare
    from analysis.read.throughput import choose_throughput

    times = choose_throughput(throughput, examples_per_second_per_device, max_batch_per_device, step_latency)
    found = compare(results, config, targets=target or None, reference=reference, throughput=times)
    answer(found, output or results / "analysis" / "compare", as_json=as_json, figures=figures, venue=venue)
