"""``cbs recipes atlas``."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    tables: Annotated[Path, typer.Argument(help="Folder of verdicts, which cbs reproduce --record writes.")] = Path(
        "extensions/papers/atlas"
    ),
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path(
        "extensions/papers/atlas/README.md"
    ),
) -> None:
    """Write a page of every statement: published value, our value, verdict.

    Example: cbs recipes atlas extensions/papers/atlas

    Example: cbs recipes atlas extensions/papers/atlas -o page.md
    """
    from extensions.papers.reproducing.telling import atlas

    count = atlas(tables, output)
    typer.echo(f"{output}: {count} statements")
