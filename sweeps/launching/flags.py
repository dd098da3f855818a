"""The flags of ``cbs sweep`` about how far it goes; :mod:`sweeps.launching.asked` says what they ask for."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def ending_flags(
    precision: Annotated[
        float | None,
        typer.Option(
            help="On until the half-width of the interval of ln B_crit, ln(high/low)/2, is at most this: 0.15 is "
            "about 15 % to either side; with --budget of the largest batch size that is as good."
        ),
    ] = None,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto", help="Add batch sizes until both sides of the curve are seen; with --budget, one that is worse."
        ),
    ] = False,
    telescope: Annotated[
        str | None,
        typer.Option(
            metavar="WIDTHS",
            help="Carry the best learning rate across widths in muP, on grids of 8, 5, 3 and 1: 16..128.",
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="No trial starts after this long: 2h, 30m, or seconds; those that run end."),
    ] = None,
    max_examples: Annotated[
        float | None,
        typer.Option(help="No trial starts once all trials of the sweep together have taken so many examples: 1e7."),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this long, for queues; trials under way go on from checkpoints with the same command.",
        ),
    ] = None,
) -> dict[str, Any]:
    """What was given, by the names of the parameters."""
    return dict(locals())
