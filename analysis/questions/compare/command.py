"""``cbs compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.config import AnalysisConfig
from analysis.options import Answer, ResultsPath, Targets, answer_with, config_of, options, times_of


@options(config=config_of, times=times_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Optimizer that the others are compared with. Default: adamw where it is there, else the first."
        ),
    ] = None,
    *,
    times: Any,
    config: AnalysisConfig,
    answer: Answer,
) -> None:
    """Optimizers side by side: which critical batch is larger.

    Token ratio, probability of the larger critical batch size, compute-time plane.

    Example: cbs compare results/ --reference adamw --throughput throughput.csv
    """
    from analysis.questions.compare.answer import compare

    comparisons = compare(results, config, targets=target or None, reference=reference, throughput=times)
    answer(comparisons, results / "analysis" / "compare")
