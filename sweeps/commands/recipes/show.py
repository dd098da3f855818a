"""``cbs recipes show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbs.registry import completing, listed


def command(
    name: Annotated[
        str,
        typer.Argument(help=f"Recipe: {listed('sweeps.papers')}.", autocompletion=completing("sweeps.papers")),
    ],
    scale: Annotated[str, typer.Option(help="tiny or paper.")] = "tiny",
) -> None:
    """Show the protocol, the deviations from the paper, and what is expected.

    Example: cbs recipes show nqm

    Example: cbs recipes show merit-gpt2 --json
    """
    from sweeps.reproducing.reproduce import recipe_of
    from sweeps.reproducing.telling import recipe_lines

    recipe = recipe_of(name, scale)
    typer.echo("\n".join(recipe_lines(name, recipe, Path("results") / f"{name}-{scale}")))
