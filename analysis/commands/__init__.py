"""The commands that read results: one file each, a thin mirror of one public function.

A module here has a function ``command`` and becomes the command of its own name (``import_`` is ``cbs import``). What
it needs beyond typer is imported when it runs, so ``cbs --help`` stays quick; names in help texts are read from the
sources of the registries. Nothing here trains: what has to be measured first is asked of :class:`Training`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from analysis.venues import VENUES, venue
from cbs.registry import listed

if TYPE_CHECKING:
    from analysis.config import AnalysisConfig
    from analysis.present import Result
    from cbs.step_times import StepTime


def _known_venue(name: str) -> str:
    """Refuse a venue that there is not before anything is computed."""
    with venue(name):
        return name


ResultsPath = Annotated[Path, typer.Argument(help="A sweep, or a folder of sweeps.", show_default=True)]
Targets = Annotated[
    list[float] | None, typer.Option("--target", help="Target value; repeat for several. Default: the sweep's.")
]
Confidence = Annotated[float, typer.Option(help="Coverage of the intervals.")]
Resamples = Annotated[int, typer.Option(help="Bootstrap resamples.")]
DefinitionName = Annotated[
    str,
    typer.Option(
        "--definition",
        help="Definition of the critical batch size that tables and figures show: "
        f"{listed('analysis.estimate.definitions')}.",
    ),
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
    typer.Option("--venue", callback=_known_venue, help=f"Width of the figures: {', '.join(VENUES)}."),
]
ExamplesPerSecond = Annotated[
    float | None, typer.Option(help="Instead of a table: assume so many examples per second and device.")
]
MaxBatch = Annotated[int | None, typer.Option(help="Most examples a device takes in a step.")]
StepLatency = Annotated[float, typer.Option(help="Seconds of a step whatever the batch size.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print every quantity.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]

_WIDE = 160


@dataclass(frozen=True, kw_only=True)
class Training:
    """What commands here ask of the package that trains; the command line hands it over as the context's object.

    Attributes:
        step_times: path of a folder of results -> seconds per step on this machine, of every optimizer and batch size.
        noise_scale: keyword arguments of ``sweeps.noise_scale.measure`` -> the noise scale along a short run, as plain
            JSON values.
        noise_scale_check: keyword arguments of ``sweeps.noise_scale.check`` -> one batch against a loop over examples.
    """

    step_times: Callable[[str], list[StepTime]]
    noise_scale: Callable[..., dict[str, Any]]
    noise_scale_check: Callable[..., Any]


errors = Console(stderr=True, highlight=False)
"""For progress and notes; what a script reads goes to standard output."""


def console() -> Console:
    """Standard output; where it is not a terminal, wide enough for most tables to stay in one piece."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, width=wide)


def config_of(
    definition: str,
    overhead: float | None,
    reference_batch: float | None,
    confidence: float,
    resamples: int,
    tolerance: float | None,
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


def answer(
    result: Result,
    folder: Path,
    *,
    as_json: bool,
    figures: bool = True,
    venue: str = "default",
    wide: bool = False,
    definitions: bool = False,
) -> None:
    """Write what a question found into ``folder`` and print it, for a person or as JSON."""
    from analysis import present

    files = present.write(result, folder, figures=figures, venue=venue)
    if as_json:
        typer.echo(json.dumps(present.to_json(result, files=files), indent=2, allow_nan=False))
    else:
        present.show(result, console(), wide=wide, definitions=definitions, files=files)
