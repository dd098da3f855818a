"""``cbs status``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import console
from cbs.errors import ConfigError
from sweeps.commands import AsJson


def command(
    results: Annotated[Path, typer.Argument(help="A sweep, or a folder of sweeps.", show_default=True)] = Path(
        "results"
    ),
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds until no sweep runs; Ctrl-C ends it.")
    ] = False,
    clean: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Remove what killed sweeps left behind, and say what it was: leftovers, or failed for the records of "
            "failed trials, too.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the finished, running and failed trials of the sweeps in a folder.

    Also from another terminal or machine: best learning rates so far, the curve, the time left. Leftovers are
    half-written and damaged files, checkpoints of finished trials, stale locks. Finished trials, and checkpoints that a
    trial will resume from, stay; a sweep that is running is left alone.

    Example: cbs status results/quick --watch

    Example: cbs status results/ --clean leftovers
    """
    from sweeps.launching.ledger import clean as clean_folder
    from sweeps.launching.ledger import ledgers
    from sweeps.launching.ledger import watch as watch_folder
    from sweeps.spec.combinations import refuse

    given = {"--watch": watch, "--clean": clean is not None, "--json": as_json}
    refuse({name for name, there in given.items() if there})
    if clean is not None:
        if clean not in ("leftovers", "failed"):
            raise ConfigError(f"--clean removes leftovers, or failed, got {clean}")
        removed = [str(path) for path in clean_folder(results, failed=clean == "failed")]
        shown = "\n".join(removed) if removed else "nothing to remove"
        typer.echo(json.dumps({"removed": removed}, indent=2) if as_json else shown)
        return
    if watch:
        watch_folder(results, console())
        return
    all_ledgers = ledgers(results)
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in all_ledgers], indent=2))
    else:
        typer.echo("\n".join(line for entry in all_ledgers for line in entry.lines()))
