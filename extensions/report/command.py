"""``cbs report``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AsJson, Asked, ResultsPath, asked_of, config_of, errors, options
from analysis.config import AnalysisConfig
from cbs.errors import ConfigError
from cbs.registry.commands import command_line


@options(asked=asked_of, config=config_of)
def command(
    results: ResultsPath = Path("results"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write. Default: RESULTS/analysis/report.html.")
    ] = None,
    *,
    asked: Asked,
    config: AnalysisConfig,
    methods: Annotated[
        bool,
        typer.Option(
            "--methods", help="Print the methods paragraph of a paper about these results, with BibTeX; write no page."
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="While a sweep runs, write the page again and again; a browser reloads it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Everything about the results as one HTML page.

    Tables, figures, data, protocol; the page needs no network.

    Example: cbs report results/ -o report.html

    Example: cbs report results/ --methods
    """
    if methods:
        if output is not None or live:
            raise ConfigError("--methods prints and writes no page: leave out --output and --live")
        from extensions.report.methods import methods as methods_of

        with errors.status("analyzing"):
            found = methods_of(results, targets=asked.targets, metric=asked.metric, config=config)
        parts = (*found.paragraphs, found.bibtex)
        typer.echo(json.dumps(found.to_json(), indent=2) if as_json else "\n\n".join(parts))
        return
    with errors.status("analyzing"):
        from extensions.report.page import Page, follow, report

        command = command_line()
        about: dict[str, Any] = {"targets": asked.targets, "metric": asked.metric, "command": command}

        def write(refresh: int | None = None) -> Page:
            return report(results, output=output, config=config, refresh=refresh, **about)

        page = follow(results, write, lambda line: errors.print(line, markup=False)) if live else write()
    typer.echo(json.dumps(page.to_json(), indent=2) if as_json else f"report: {page.path}")
