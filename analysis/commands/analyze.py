"""``cbs analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.commands import AsJson, Definitions, ResultsPath, Targets, VenueName, Wide, answer, config_of, options
from analysis.config import AnalysisConfig


@options(config=config_of)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for figures and tables. Default: RESULTS/analysis.")
    ] = None,
    *,
    config: AnalysisConfig,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    venue: VenueName = "default",
    definitions: Definitions = False,
    wide: Wide = False,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Say which trials would help most, with the command that runs them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Critical batch size with interval, noise scale, figures and tables.

    Example: cbs analyze results/ --target 2.4 --target 2.8
    """
    from analysis.questions.analyze import analyze

    found = analyze(results, config, targets=target or None, suggestions=suggest)
    folder = output or results / "analysis"
    answer(found, folder, as_json=as_json, figures=figures, venue=venue, wide=wide, definitions=definitions)
