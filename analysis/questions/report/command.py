"""``cbs report``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.config import AnalysisConfig
from analysis.consoles import errors
from analysis.options import AsJson, MetricName, ResultsPath, Targets, config_of, options


@options(config=config_of)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    metric: MetricName = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write. Default: RESULTS/analysis/report.html.")
    ] = None,
    *,
    config: AnalysisConfig,
    as_json: AsJson = False,
) -> None:
    """Everything about the results as one HTML page.

    Tables, figures, data, protocol; the page needs no network.

    Example: cbs report results/ -o report.html
    """
    with errors.status("analyzing"):
        from analysis.questions.report.answer import report

        command = shlex.join(["cbs", *sys.argv[1:]])
        about: dict[str, Any] = {"targets": target or None, "metric": metric, "command": command}
        page = report(results, output=output, config=config, **about)
    typer.echo(json.dumps(page.to_json(), indent=2) if as_json else f"report: {page.path}")
