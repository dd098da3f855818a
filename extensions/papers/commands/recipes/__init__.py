"""``cbs recipes``."""

import json

import typer

from sweeps.commands import AsJson


def command(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Recipes of papers: what each one looks for, and what it costs.

    What one of them does, and what it expects: 'cbs reproduce NAME --dry-run'.

    Example: cbs recipes

    Example: cbs recipes --json
    """
    if context.invoked_subcommand is not None:
        return
    from extensions.papers.reproducing.telling import listing, listing_lines

    rows = listing()
    typer.echo(json.dumps(rows, indent=2, allow_nan=False) if as_json else "\n".join(listing_lines(rows)))
