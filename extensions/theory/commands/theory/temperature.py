"""``cbs theory temperature``."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import AnswerWriter, answer_with, level_of, options
from analysis.config import AnalysisConfig


@options(config=level_of, answer=answer_with)
def command(
    results: Annotated[list[Path], typer.Argument(help="Sweeps, or folders of sweeps, with a budget and a probe.")],
    *,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Noise scale against learning rate and batch size.

    According to McCandlish et al. (2018) it is proportional to 1/T, with T the learning rate over the batch size.

    Example: cbs theory temperature results/

    Example: cbs theory temperature results/ --wide
    """
    from extensions.theory.temperature import temperature

    answer(temperature(*results, config=config), results[0] / "analysis" / "temperature")
