"""``cbs recipes show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extensions.papers.commands import Paper


def command(
    name: Paper,
    scale: Annotated[str, typer.Option(help="tiny or paper.")] = "tiny",
) -> None:
    """Show the protocol, the deviations from the paper, and what is expected.

    Example: cbs recipes show nqm

    Example: cbs recipes show merit-gpt2 --scale paper
    """
    from extensions.papers.reproducing.reproduce import recipe_of
    from extensions.papers.reproducing.telling import recipe_lines

    recipe = recipe_of(name, scale)
    typer.echo("\n".join(recipe_lines(name, recipe, Path("results") / f"{name}-{scale}")))
