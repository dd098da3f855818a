"""Commands about recipes of papers."""

from typing import Annotated

import typer

from cbs.registry import completing, listed

Paper = Annotated[
    str,
    typer.Argument(
        help=f"Recipe: {listed('extensions.papers.experiments')}.",
        autocompletion=completing("extensions.papers.experiments"),
    ),
]
