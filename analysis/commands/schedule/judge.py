"""``cbs schedule judge``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analysis.commands import ResultsPath, Targets, answer_with, config_of, options
from analysis.config import AnalysisConfig


@options(config=config_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    *,
    config: AnalysisConfig,
    answer: Callable[..., None],
) -> None:
    """What batch schedules bought: their runs against the constant batch sizes run beside them.

    Example: cbs schedule judge results/ --target 2.4
    """
    from analysis.questions.schedules import schedules

    answer(schedules(results, config, targets=target or None), results / "analysis" / "schedules")
