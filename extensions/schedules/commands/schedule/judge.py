"""``cbs schedule judge``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import (
    AnswerWriter,
    Asked,
    ResultsPath,
    answer_with,
    asked_of,
    config_of,
    options,
    times_of,
)
from analysis.config import AnalysisConfig


@options(asked=asked_of, config=config_of, times=times_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    devices: Annotated[int, typer.Option(help="Devices that share a step, to compute hours.", min=1)] = 1,
    *,
    asked: Asked,
    times: Any,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Compare batch schedules with the constant batch sizes of the same sweep.

    By the steps and examples to the target; or where trials end at a budget, by the final metric.

    Example: cbs schedule judge results/ --target 2.4 --throughput throughput.csv

    Example: cbs schedule judge results/seesaw --target gradient_norm
    """
    from extensions.schedules.judge import judge

    about: dict[str, Any] = {"targets": asked.targets, "metric": asked.metric, "throughput": times, "devices": devices}
    answer(judge(results, config, **about), results / "analysis" / "schedules")
