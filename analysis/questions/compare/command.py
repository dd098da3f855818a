"""``cbs compare``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AnswerWriter, Asked, answer_with, asked_of, config_of, options, times_of
from analysis.config import AnalysisConfig


@options(asked=asked_of, config=config_of, times=times_of, answer=answer_with)
def command(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Sweeps, or folders of sweeps; several are compared with one another.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Optimizer that the others are compared with. Default: adamw if it is among them, else the first."
        ),
    ] = None,
    *,
    asked: Asked,
    times: Any,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Optimizers side by side: whose critical batch size is larger.

    Token ratio, probability of the larger critical batch size, compute-time plane.

    Example: cbs compare results/ --reference adamw --throughput throughput.csv

    Example: cbs compare results/adamw results/merit --target 2.4
    """
    from analysis.questions.compare.optimizers import compare

    first, *others = results or [Path("results")]
    about: dict[str, Any] = {"targets": asked.targets, "metric": asked.metric, "reference": reference}
    comparisons = compare(first, config, others=others, throughput=times, **about)
    answer(comparisons, first / "analysis" / "compare")
