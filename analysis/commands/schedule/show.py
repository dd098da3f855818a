"""``cbs schedule show``."""

from __future__ import annotations

from typing import Annotated

import typer

from analysis.commands import AsJson, tell
from cbs.registry import listed


def command(
    table: Annotated[
        str,
        typer.Argument(
            help="Where each stage begins and its batch size: '0:768 250B:1536 500B:3072'; or what a trainer takes "
            f"({listed('analysis.read.trainers')}), as text or the name of a file."
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(help="Where the run ends, in the unit of the table: 750B, 1.5M. Default: what the text says."),
    ] = None,
    tokens_per_example: Annotated[
        int | None, typer.Option(help="Tokens in an example, where the table counts tokens.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How many steps a table of stages takes, and what it saves against a constant batch size.

    Example: cbs schedule show '0:1024 168B:2048 503B:4096' --budget 608B --tokens-per-example 4096
    """
    from analysis.questions.schedule_stages import stages

    tell(stages(table, budget, tokens_per_example=tokens_per_example), (), as_json=as_json)
