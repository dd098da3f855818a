"""``cbs schedule judge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.config import AnalysisConfig
from analysis.options import AnswerWriter, ResultsPath, Targets, answer_with, config_of, options, times_of


@options(config=config_of, times=times_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    devices: Annotated[int, typer.Option(help="Devices that share a step, to compute hours.", min=1)] = 1,
    *,
    times: Any,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Compare batch schedules with the constant batch sizes of the same sweep.

    Example: cbs schedule judge results/ --target 2.4 --throughput throughput.csv

    Example: cbs schedule judge results/ --devices 8
    """
    from extensions.schedules.judge.answer import schedules

    judged_schedules = schedules(results, config, targets=target or None, throughput=times, devices=devices)
    answer(judged_schedules, results / "analysis" / "schedules")
