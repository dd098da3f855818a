"""``cbs analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.config import AnalysisConfig
from analysis.options import (
    Answer,
    Definitions,
    MetricName,
    ResultsPath,
    Targets,
    Wide,
    answer_with,
    config_of,
    options,
)


@options(config=config_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    metric: MetricName = None,
    *,
    config: AnalysisConfig,
    definitions: Definitions = False,
    wide: Wide = False,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Suggest the trials that would help most, with the command that runs them."),
    ] = False,
    answer: Answer,
) -> None:
    """Critical batch size with interval, what doubling buys, noise scale, figures.

    The critical batch size B_crit is where steps x examples, B S(B)^2, is least: there one percent fewer steps costs
    one percent more examples. The results are also written as tables, in CSV and LaTeX.

    Example: cbs analyze results/ --target 2.4 --target 2.8

    Example: cbs analyze results/quick --suggest --figures neurips
    """
    from analysis.questions.analyze.answer import analyze

    analysis = analyze(results, config, targets=target or None, metric=metric, suggestions=suggest)
    answer(analysis, results / "analysis", wide=wide, definitions=definitions)
