"""``cbs lr``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.commands import AsJson, Confidence, DefinitionName, Resamples, ResultsPath, Targets, VenueName, answer


def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    scale_from: Annotated[
        int | None,
        typer.Option(
            help="Batch size whose best learning rate the square-root and linear rules start from. "
            "Default: the middle one of those with a best learning rate inside the grid."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for tables and figures. Default: RESULTS/analysis/lr.")
    ] = None,
    definition: DefinitionName = "pareto",
    confidence: Confidence = 0.95,
    resamples: Resamples = 2000,
    figures: Annotated[bool, typer.Option(help="Draw the figure.")] = True,
    venue: VenueName = "default",
    as_json: AsJson = False,
) -> None:
    """How the best learning rate follows the batch size, and what square-root or linear scaling would have measured.

    Example: cbs lr results/ --target 2.4
    """
    from analysis.config import AnalysisConfig
    from analysis.questions.learning_rate import learning_rates

    config = AnalysisConfig(definition=definition, confidence=confidence, resamples=resamples)
    found = learning_rates(results, config, targets=target or None, reference=scale_from)
    answer(found, output or results / "analysis" / "lr", as_json=as_json, figures=figures, venue=venue)
