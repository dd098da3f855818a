"""``cbs budget``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AnswerWriter, answer_with, errors, level_of, options
from cbs.registry.values import parse_numbers


@options(config=level_of, answer=answer_with)
def command(
    results: Annotated[list[Path], typer.Argument(help="Sweeps, or folders of sweeps.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="E,E...",
            help="Budgets in examples, read off curves with a constant learning rate. Default: where the runs end.",
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            help="How far above the best loss one is as good: in the unit of the metric (0.01), or a share (1%). "
            "Default: 0.01 where the metric is in nats, else 1%."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Another metric that the trials recorded. Default: the target's.")
    ] = None,
    *,
    config: Any,
    answer: AnswerWriter,
) -> None:
    """Equal budgets: up to which batch size is the loss as good?

    Final metric, largest batch size within a margin of the best, cost of doubling.

    Example: cbs budget results/ --at 1e6,2e6 --within 0.01

    Example: cbs budget results/adamw results/merit --within 1%
    """
    from extensions.budget.equal_budgets import budget

    budgets = () if at is None else parse_numbers(at, "--at", float, ", of examples, as in 1e6,2e6")
    with errors.status("resampling"):
        result = budget(*results, config=config, at=budgets, within=within, metric=metric)
    answer(result, results[0] / "analysis" / "budget")
