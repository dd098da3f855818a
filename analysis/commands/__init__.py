"""The commands that read results: one file each, a thin mirror of one public function.

A module here has a function ``command`` and becomes the command of its own name (``import_`` is ``cbs import``). What
it needs beyond typer is imported when it runs, so ``cbs --help`` stays quick.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

if TYPE_CHECKING:
    from analysis.config import AnalysisConfig

ResultsPath = Annotated[Path, typer.Argument(help="A sweep, or a folder of sweeps.", show_default=True)]
Targets = Annotated[
    list[float] | None, typer.Option("--target", help="Target value; repeat for several. Default: the sweep's.")
]
Confidence = Annotated[float, typer.Option(help="Coverage of the intervals.")]
Resamples = Annotated[int, typer.Option(help="Bootstrap resamples.")]
DefinitionName = Annotated[
    str, typer.Option("--definition", help="Definition of the critical batch size that tables and figures show.")
]
Overhead = Annotated[
    float | None, typer.Option(help="Of definition overhead: share of steps over linear scaling. Default: 0.2.")
]
ReferenceBatch = Annotated[
    float | None,
    typer.Option(help="Of definition overhead: batch size linear scaling starts from. Default: B -> 0."),
]
Tolerance = Annotated[
    float | None,
    typer.Option(help="Of the definition, where it has one: relative excess that still counts as equal."),
]
Definitions = Annotated[
    bool, typer.Option("--definitions", help="Print every definition of the critical batch size side by side.")
]
VenueName = Annotated[
    str,
    typer.Option("--venue", help="Width of the figures: default, icml, neurips, iclr, acl, jmlr, ieee."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]

_WIDE = 160
_REGISTRY = re.compile(r"\{([\w.]+):(\w+)\}")

errors = Console(stderr=True, highlight=False)
"""For progress and notes; what a script reads goes to standard output."""


def console() -> Console:
    """Standard output; wide enough for every table where it is not a terminal, which would cut them at 80 columns."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, width=wide)


def config_of(
    definition: str,
    overhead: float | None,
    reference_batch: float | None,
    confidence: float,
    resamples: int,
    tolerance: float | None = None,
) -> AnalysisConfig:
    """The options above as a :class:`~analysis.config.AnalysisConfig`.

    ``overhead`` and ``reference_batch`` belong to definition ``overhead``, whichever is chosen, because all of them are
    evaluated; ``tolerance`` to the chosen one.
    """
    from analysis.config import AnalysisConfig

    given = {"overhead": overhead, "reference_batch": reference_batch}
    options: dict[str, dict[str, float]] = {}
    for name, value in given.items():
        if value is not None:
            options.setdefault("overhead", {})[name] = value
    if tolerance is not None:
        options.setdefault(definition, {})["tolerance"] = tolerance
    return AnalysisConfig(definition=definition, options=options, confidence=confidence, resamples=resamples)


class Command(TyperCommand):
    """A command whose help names what registries hold.

    In the help of an option ``{module:REGISTRY}`` stands for the names of the entries, which are looked up when the
    help is shown.
    """

    def get_help(self, ctx: Any) -> str:
        for parameter in self.params:
            parameter.help = _REGISTRY.sub(_names, getattr(parameter, "help", None) or "")  # type: ignore[attr-defined]
        return super().get_help(ctx)


def _names(place: re.Match[str]) -> str:
    module, name = place.groups()
    return ", ".join(getattr(importlib.import_module(module), name))


def add_to(app: typer.Typer) -> None:
    """Register every command of this package with ``app``, once."""
    known = {command.name for command in app.registered_commands}
    for module in pkgutil.iter_modules(__path__):
        name = module.name.strip("_").replace("_", "-")
        if name not in known:
            app.command(name, cls=Command)(importlib.import_module(f"{__name__}.{module.name}").command)
