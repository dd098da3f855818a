"""The flags of ``cbs sweep`` about how far it goes; :mod:`sweeps.launching.asked` says what they ask for."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def ending_flags(
    precision: Annotated[
        float | None,
        typer.Option(help="Half-width of the interval of ln B_crit to reach."),
    ] = None,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Add batch sizes until both asymptotes are seen."),
    ] = False,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start no trial after this long: 2h, 30m, or seconds."),
    ] = None,
    max_examples: Annotated[
        float | None,
        typer.Option(help="Start no trial after so many examples in all: 1e7.", hidden=True),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this long; the same command resumes.",
        ),
    ] = None,
) -> dict[str, Any]:
    """What was given, by the names of the parameters."""
    return dict(locals())
