"""``cbs schedule losses``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.options import AnswerWriter, ResultsPath, answer_with, level_of, options


@options(config=level_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    metric: Annotated[
        str | None, typer.Option(help="One of the metrics that the trials recorded. Default: the target's.")
    ] = None,
    *,
    config: Any,
    answer: AnswerWriter,
) -> None:
    """Batch schedules at equal budgets: their final metrics.

    The final metric beside that of the batch size it starts from, and the steps saved.

    Example: cbs schedule losses results/

    Example: cbs schedule losses results/ --metric gradient_norm
    """
    from extensions.schedules.losses import schedule_losses

    answer(schedule_losses(results, config, metric=metric), results / "analysis" / "schedule_losses")
