"""The options of ``cbs sweep`` about an external program that trains."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def program_flags(
    command: Annotated[
        str | None,
        typer.Option(
            help="The program, with {batch_size}, {lr}, {seed} and {folder} where their values go. Needs --metric, "
            "--direction, --metric-unit, --example-unit.",
        ),
    ] = None,
    reads: Annotated[
        str,
        typer.Option(
            help="Its log: report, csv, tensorboard, nanogpt, 'stdout(step=..., metric=...)', ...",
            show_default=False,
            hidden=True,
        ),
    ] = "report",
    metric: Annotated[str | None, typer.Option(help="Its metric; of a workload, a further one.", hidden=True)] = None,
    direction: Annotated[str | None, typer.Option(help="Better is below or above the target.", hidden=True)] = None,
    metric_unit: Annotated[
        str | None, typer.Option(help="Unit of the metric, such as nats/token.", hidden=True)
    ] = None,
    example_unit: Annotated[
        str | None, typer.Option(help="What one example is, such as sequence.", hidden=True)
    ] = None,
    tokens_per_example: Annotated[int | None, typer.Option(help="Tokens in an example.", hidden=True)] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="Name of a column in the log. Repeats.", hidden=True),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="What {resume} becomes in a resumed trial.", hidden=True),
    ] = None,
) -> dict[str, Any]:
    """Return the given options as arguments of :func:`sweeps.external.asked.program_of`."""
    given = dict(locals())
    return given | {"columns": given.pop("column")}
