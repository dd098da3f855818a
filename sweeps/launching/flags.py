"""The options of ``cbs sweep`` that say how far it goes; :mod:`sweeps.launching.asked` interprets them."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def ending_flags(
    precision: Annotated[
        float | None,
        typer.Option(
            help="Half-width of the interval of ln B_crit to reach: 0.2, or 0.35 in quick; none with --batch-sizes."
        ),
    ] = None,
    max_runs: Annotated[
        float | None,
        typer.Option(help="End after the examples of so many runs at B_crit, per optimizer (100)."),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start no trial after this long: 2h, 30m, or seconds."),
    ] = None,
    max_examples: Annotated[
        float | None,
        typer.Option(help="Start no trial after this many examples in total: 1e7.", hidden=True),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this long; the same command resumes.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())
