"""The options of ``cbs sweep`` about an external program that trains."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def program_flags(
    command: Annotated[
        str | None,
        typer.Option(
            help="The program, with {batch_size}, {lr}, {seed} and {folder} where their values go.",
        ),
    ] = None,
    reads: Annotated[
        str,
        typer.Option(help="Its log: report, csv, jsonl, tensorboard, ...", show_default=False),
    ] = "report",
    metric: Annotated[str | None, typer.Option(help="Its metric; or, of a workload, another one than its own.")] = None,
    direction: Annotated[str | None, typer.Option(help="Better is below or above the target.")] = None,
    metric_unit: Annotated[str | None, typer.Option(help="Unit of the metric, such as nats/token.")] = None,
    example_unit: Annotated[str | None, typer.Option(help="What one example is, such as sequence.")] = None,
    tokens_per_example: Annotated[int | None, typer.Option(help="Tokens in an example.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="Name of a column in the log. Repeats."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="What {resume} becomes in a resumed trial."),
    ] = None,
) -> dict[str, Any]:
    """Return the given options as arguments of :func:`sweeps.external.asked.program_of`."""
    given = dict(locals())
    return given | {"columns": given.pop("column")}
