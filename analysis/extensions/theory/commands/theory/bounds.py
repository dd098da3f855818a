"""``cbs theory bounds``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.config import AnalysisConfig
from analysis.consoles import errors
from analysis.options import Answer, ResultsPath, Targets, answer_with, config_of, options


@options(config=config_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    target: Targets = None,
    form: Annotated[
        str | None,
        typer.Option(help="Fit this form to every optimizer: root, linear, decay. Default: that of its bound, if any."),
    ] = None,
    at_lr: Annotated[
        float | None, typer.Option(help="Use this learning rate at all batch sizes, as the bounds assume.")
    ] = None,
    *,
    config: AnalysisConfig,
    answer: Answer,
) -> None:
    """Whether steps follow the upper bounds that theory has for them.

    Of Sato, Naganuma and Iiduka (2025): batch size of fewest examples, and which predictions hold.

    Example: cbs theory bounds results/ --at-lr 0.008

    Example: cbs theory bounds results/ --target 2.4
    """
    from analysis.extensions.theory.bounds.measured import measured_bounds

    with errors.status("fitting"):
        bounds = measured_bounds(results, config, targets=target or None, form=form, lr=at_lr)
    answer(bounds, results / "analysis" / "bounds")
