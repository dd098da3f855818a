"""``cbs clean``."""

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
    failed: Annotated[bool, typer.Option("--failed", help="Also remove the records of failed trials.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what killed sweeps left behind.

    Half-written and damaged files, checkpoints of finished trials, stale locks. Finished trials, and checkpoints that a
    trial will resume from, stay; a sweep that is running is left alone.

    Example: cbs clean results/ --dry-run

    Example: cbs clean results/ --failed
    """
    from sweeps.launching.ledger import clean

    leftovers = [str(path) for path in clean(results, failed=failed, dry_run=dry_run)]
    if as_json:
        typer.echo(json.dumps({"removed": [] if dry_run else leftovers, "found": leftovers}, indent=2))
    else:
        typer.echo("\n".join(leftovers) if leftovers else "nothing to remove")
