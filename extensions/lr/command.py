"""``cbs lr``."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import AnswerWriter, Asked, ResultsPath, answer_with, asked_of, config_of, options
from analysis.config import AnalysisConfig


@options(asked=asked_of, config=config_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    scale_from: Annotated[
        int | None,
        typer.Option(
            help="Batch size whose best learning rate the square-root and linear rules start from. "
            "Default: the middle one of those with a best learning rate inside the grid."
        ),
    ] = None,
    *,
    asked: Asked,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """How the best learning rate depends on the batch size.

    Also the critical batch sizes that square-root and linear scaling of the learning rate would have given.

    Example: cbs lr results/ --target 2.4

    Example: cbs lr results/ --scale-from 64
    """
    from extensions.lr.learning_rates import learning_rates

    found = learning_rates(results, config, targets=asked.targets, metric=asked.metric, reference=scale_from)
    answer(found, results / "analysis" / "lr")
