"""The commands that train: one file each, a thin mirror of one function of the library.

A module here has a function ``command`` and becomes the command of its own name. What it needs beyond typer is imported
when it runs, so ``cbs --help`` stays quick; names in help texts are read from the sources of the registries.
"""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "Measure"
"""Under which heading ``cbs --help`` lists the commands that say nothing else."""

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. workload.size=200k. Repeats."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")]
