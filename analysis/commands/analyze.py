"""``cbs analyze``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from analysis.commands import AsJson, Confidence, Resamples, ResultsPath, Targets


def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for figures and tables. Default: RESULTS/analysis.")
    ] = None,
    confidence: Confidence = 0.95,
    resamples: Resamples = 2000,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    as_json: AsJson = False,
) -> None:
    """Critical batch size with interval, noise scale, figures and tables.

    Example: cbs analyze results/ --target 2.4 --target 2.8
    """
    from rich.console import Console

    from analysis.report import analyze

    report = analyze(
        results, targets=target or None, output=output, confidence=confidence, resamples=resamples, figures=figures
    )
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, allow_nan=False))
        return
    report.print(Console(highlight=False))
