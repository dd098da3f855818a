"""``cbs compare``."""

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
    reference: Annotated[
        str | None,
        typer.Option(
            help="Optimizer that the others are compared with. Default: adamw where it is there, else the first."
        ),
    ] = None,
    throughput: Annotated[
        Path | None, typer.Option(help="Table of step times (CSV or Parquet), for the compute-time plane.")
    ] = None,
    *,
    assumed: Any,
    config: AnalysisConfig,
    answer: Callable[..., None],
) -> None:
    """Optimizers side by side: token ratio, which critical batch size is the larger, compute-time plane.

    Example: cbs compare results/ --reference adamw --throughput throughput.csv
    """
    from analysis.questions.comparison.result import compare
    from analysis.read.throughput import read_throughput

    if throughput is not None and assumed is not None:
        raise ConfigError("give either --throughput or --examples-per-second-per-device, not both")
    times = assumed if throughput is None else read_throughput(throughput)
    found = compare(results, config, targets=target or None, reference=reference, throughput=times)
    answer(found, results / "analysis" / "compare")
