"""``cbs schedule judge``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.commands import ResultsPath, Targets, answer_with, assumed_of, config_of, options
from analysis.config import AnalysisConfig
from cbs.errors import ConfigError


@options(config=config_of, assumed=assumed_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    throughput: Annotated[
        Path | None, typer.Option(help="Table of step times (CSV or Parquet). Default: those of the trials.")
    ] = None,
    devices: Annotated[int, typer.Option(help="Devices that share a step, for the hours.", min=1)] = 1,
    *,
    assumed: Any,
    config: AnalysisConfig,
    answer: Callable[..., None],
) -> None:
    """What batch schedules bought: their runs against the constant batch sizes run beside them.

    Example: cbs schedule judge results/ --target 2.4 --throughput throughput.csv
    """
    from analysis.questions.schedules import schedules
    from analysis.read.throughput import read_throughput

    if throughput is not None and assumed is not None:
        raise ConfigError("give either --throughput or --examples-per-second-per-device, not both")
    times = assumed if throughput is None else read_throughput(throughput)
    found = schedules(results, config, targets=target or None, throughput=times, devices=devices)
    answer(found, results / "analysis" / "schedules")
