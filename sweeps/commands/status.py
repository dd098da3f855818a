"""``cbs status``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sweeps.commands import AsJson


def command(
    results: Annotated[Path, typer.Argument(help="A sweep, or a folder of sweeps.", show_default=True)] = Path(
        "results"
    ),
    as_json: AsJson = False,
) -> None:
    """Finished, running and failed trials of the sweeps in a folder.

    Also from another terminal or machine.

    Example: cbs status results/quick
    """
    from sweeps.launching.ledger import ledgers

    all_ledgers = ledgers(results)
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in all_ledgers], indent=2))
    else:
        typer.echo("\n".join(line for entry in all_ledgers for line in entry.lines()))
