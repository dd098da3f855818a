"""The options that commands which read results share, and how they answer.

A command is a function ``command``, a thin mirror of one public function; what it needs beyond typer is imported when
it runs, so ``cbs --help`` stays quick; names in help texts are read from the sources of the registries. None of them
trains.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from analysis.config import INTERVALS, AnalysisConfig
from analysis.figure_options import AS_STORED, VENUES, FigureLabels, parse_figures
from cbs.errors import ConfigError
from cbs.files import refuse_links
from cbs.registry import listed
from cbs.registry.choices import parse_choice

_WIDE = 160  # Columns where nobody looks: a file or a pipe

_PAUSE = 10.0  # seconds between two lines of progress if there is no terminal

errors = Console(stderr=True, highlight=False, emoji=False)
"""For progress and notes; what a script reads goes to standard output."""


def console() -> Console:
    """Standard output; where it is not a terminal, wide enough for most tables to stay in one piece."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, emoji=False, width=wide)


@contextmanager
def progress(words: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what a command of minutes is at: a line that changes on a terminal, lines elsewhere."""
    with errors.status(words) as status:
        shown = time.monotonic()
        if not errors.is_terminal:
            errors.print(words)

        def update(words: str) -> None:
            nonlocal shown
            status.update(words)
            if not errors.is_terminal and time.monotonic() - shown > _PAUSE:
                shown = time.monotonic()
                errors.print(words)

        yield update


if TYPE_CHECKING:
    from analysis.present import Result


ResultsPath = Annotated[Path, typer.Argument(help="A sweep, or a folder of sweeps.", show_default=True)]
Targets = Annotated[list[float] | None, typer.Option(help="Target value; repeat for several. Default: the sweep's.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print every quantity and every definition.")]
Figures = Annotated[
    str | None,
    typer.Option(
        metavar="WIDTH[,NAME=SHOWN...]",
        help=f"Draw every figure at the page width of {', '.join(VENUES)}; or none. After commas: names of curves, and "
        "titles=no to leave out the title of a single panel: neurips,adamw=AdamW,titles=no. Default: the main figures.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def level_of() -> AnalysisConfig:
    """The options of the intervals, which ``cbs`` takes for all commands."""
    return AnalysisConfig(**INTERVALS.get())


@dataclass(frozen=True)
class Asked:
    """Targets that were asked for, and the metric they refer to; ``None`` for those of the sweep."""

    targets: list[float] | None
    metric: str | None


def asked_of(
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METRIC=]VALUE",
            help="Target value; accuracy=0.9 for another metric that the trials recorded, accuracy alone for the "
            "sweep's own target of it. Repeat for several. Default: the sweep's.",
        ),
    ] = None,
) -> Asked:
    """The option as values and a metric."""
    metrics: list[str] = []
    values: list[float] = []
    for text in target or ():
        metric, equals, value = map(str.strip, text.rpartition("="))
        try:
            values.append(float(value))
        except ValueError:
            if equals or not value:
                raise ConfigError(f"--target {text}: a target is a number, or METRIC=NUMBER") from None
            metric = value
        metrics.append(metric)
    if len(set(metrics)) > 1:
        raise ConfigError("--target: all targets are of one metric, the sweep's or another; ask for one at a time")
    return Asked(values or None, next(iter(metrics), "") or None)


def config_of(
    definition: Annotated[
        list[str],
        typer.Option(
            help="Definition of the critical batch size that tables and figures show: "
            f"{listed('analysis.estimate.definitions')}; with options as in 'overhead(overhead=0.2, "
            "reference_batch=256)'. Repeat to set options of further ones. [default: least_product]",
            show_default=False,
        ),
    ] = ["least_product"],  # noqa: B006 - typer copies it
) -> AnalysisConfig:
    """The options of an analysis as a :class:`~analysis.config.AnalysisConfig`; the first definition is shown."""
    options: dict[str, dict[str, Any]] = {}
    for choice in map(parse_choice, definition):
        if choice.name == "local":
            raise ConfigError("--definition local: it is read from branches of a run's checkpoints, by 'cbs local'")
        if choice.name in options:
            raise ConfigError(f"--definition {choice.name} is given twice")
        options[choice.name] = {
            name: float(value) if type(value) is int else value for name, value in choice.options.items()
        }
    return AnalysisConfig(
        definition=next(iter(options)),
        options={name: given for name, given in options.items() if given},
        **INTERVALS.get(),
    )


def times_of(
    throughput: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Step times: a table (CSV or Parquet), or assumed(examples_per_second_per_device=2000, "
            "max_batch_per_device=32, step_latency=0.004), of which the last two may be left out.",
        ),
    ] = None,
) -> Any:
    """The option as a :class:`~analysis.read.throughput.Throughput`; ``None`` where it is not given."""
    from analysis.read.throughput import assumed, read_throughput

    if throughput is None:
        return None
    return assumed(throughput) if throughput.startswith("assumed(") else read_throughput(throughput)


@dataclass(frozen=True, kw_only=True)
class AnswerWriter:
    """What writes an answer, into the folder it is given where ``output`` is not, and :func:`tell` s it; without either
    nothing is written."""

    output: Path | None
    width: str | None
    every: bool
    labels: FigureLabels
    wide: bool
    as_json: bool

    def __call__(self, result: Result, folder: Path | None) -> None:
        from analysis import present

        if self.output is None and folder is not None:
            home = next(parent for parent in (folder, *folder.parents) if parent.name == "analysis")
            refuse_links(home.parent, folder)
        files: Sequence[Path] = ()
        if to := self.output or folder:
            files = present.write(result, to, figures=self.width, every=self.every, labels=self.labels)
        tell(result, files, as_json=self.as_json, wide=self.wide)
        if files and self.width is not None and not (self.every or self.as_json):
            from analysis.present.figures import UNASKED, parts

            if (count := sum(not part.whole for part in parts(result))) > UNASKED:
                console().print(f"of {count} groups of curves the first is drawn; --figures default draws all")


def answer_with(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Output folder. Default: RESULTS/analysis, or a folder of the command in it."
        ),
    ] = None,
    figures: Figures = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> AnswerWriter:
    """The options of how an answer is told."""
    width, labels = parse_figures(figures or "default")  # an unknown width is refused before anything is computed
    if width is None and labels != AS_STORED:
        raise ConfigError("--figures none draws none: leave out what follows")
    return AnswerWriter(
        output=output, width=width, every=figures is not None, labels=labels, wide=wide, as_json=as_json
    )


def options(**made: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command: parameters of these names become the options of the functions that make them."""
    parts = {name: inspect.signature(make, eval_str=True).parameters for name, make in made.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            parameters += parts[name].values() if name in made else [parameter]

        def call(**given: Any) -> None:
            for name, make in made.items():
                given[name] = make(**{part: given.pop(part) for part in parts[name]})
            command(**given)

        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        call.__doc__ = command.__doc__
        call.intervals = "config" in made  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        call.__wrapped__ = command  # type: ignore[attr-defined]
        return call

    return decorate


def pairs(flag: str, given: Sequence[str] | None, form: str = "name=value") -> dict[str, str]:
    """Texts of the ``form`` of a flag as a dictionary; a name may be given once."""
    pairs_by_name: dict[str, str] = {}
    for text in given or ():
        name, equals, value = map(str.strip, text.partition("="))
        if not (equals and name and value):
            raise ConfigError(f"{flag} {text!r} must be {form}, as in {flag} batch_size=256")
        if name in pairs_by_name:
            raise ConfigError(f"{flag} {name} is given twice")
        pairs_by_name[name] = value
    return pairs_by_name


def tell(result: Result, files: Sequence[Path], *, as_json: bool, wide: bool = False) -> None:
    """Print what a question found and the files it was written to, for a person or as JSON."""
    from analysis import present

    if as_json:
        typer.echo(json.dumps(present.to_json(result, files=files), indent=2, allow_nan=False))
    else:
        present.show(result, console(), wide=wide, files=files)
