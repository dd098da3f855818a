"""The flags of ``cbs sweep`` about the program that trains, where there is one."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def program_flags(
    command: Annotated[
        str | None,
        typer.Option(
            help="Let this program train: 'torchrun train.py --batch {batch_size} --lr {lr} --seed {seed} --out "
            "{folder}'. Also {optimizer}, its options, {steps}, {port}, {resume}.",
        ),
    ] = None,
    reads: Annotated[
        str,
        typer.Option(help="Log of the program: report (by cbs.report), jsonl, csv, tensorboard, wandb, lightning, ..."),
    ] = "report",
    metric: Annotated[
        str | None,
        typer.Option(help="Name of the metric in that log; without --command, of a further one of the workload."),
    ] = None,
    direction: Annotated[str | None, typer.Option(help="Which side of the target is better: below or above.")] = None,
    metric_unit: Annotated[str | None, typer.Option(help="Unit of the metric, such as nats/token.")] = None,
    example_unit: Annotated[str | None, typer.Option(help="What one example is, such as sequence.")] = None,
    tokens_per_example: Annotated[int | None, typer.Option(help="Tokens in an example.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="What a column of the log is called there. Repeats."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="What {resume} stands for when a trial goes on that was cut short."),
    ] = None,
) -> dict[str, Any]:
    """What was given, as :func:`sweeps.external.asked.program_of` takes it."""
    given = dict(locals())
    return given | {"columns": given.pop("column")}
