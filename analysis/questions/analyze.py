"""One call from a results folder to answers, tables and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.config import AnalysisConfig
from analysis.estimate.parameters import critical_to_json
from analysis.estimate.result import Answer, answers
from analysis.files import in_one_piece
from analysis.present import definition_tables, tables
from analysis.questions.suggest import Suggestion, suggest
from analysis.read.results import load
from cbs.target import Target

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
"""Raised when a key of the JSON report changes its name, unit or meaning."""

REPORT = "report.json"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What :func:`analyze` found.

    Attributes:
        path: the results that were read.
        output: the folder that was written.
        answers: one per sweep, group and target.
        confidence: level of every interval.
        suggestions: trials that would help, one per answer that has any; ``None`` where nobody asked.
        notes: what was left out, one line each.
        files: every file written.
    """

    path: Path
    output: Path
    answers: tuple[Answer, ...]
    confidence: float
    suggestions: tuple[Suggestion, ...] | None = None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values that :func:`json.dumps` writes with ``allow_nan=False``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "confidence": self.confidence,
            "fits": [fit_to_json(answer, self.answers) for answer in self.answers],
            "suggestions": None if self.suggestions is None else [entry.to_json() for entry in self.suggestions],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }

    def print(self, console: Console, *, definitions: bool = False) -> None:
        """The short table with its advice, suggestions where asked for, the notes, and where the files are;
        ``definitions`` adds all of them side by side."""
        console.print(tables.terminal_table(self.answers, confidence=self.confidence))
        if definitions:
            console.print(definition_tables.terminal_table(self.answers, confidence=self.confidence))
        if self.suggestions is not None:
            for line in _in_words(self.suggestions):
                console.print(line, markup=False, soft_wrap=True)
        for note in self.notes:
            console.print(note, markup=False)
        pictures = [path for path in self.files if path.suffix == ".png"]
        rest = [path for path in self.files if path.suffix in (".tex", ".json") or path.parent == self.output]
        if pictures:
            console.print("figures (beside each the same as .pdf, and the table behind it as .csv):")
        for path in pictures:
            console.print(f"  {path}", markup=False, soft_wrap=True)
        console.print(f"tables: {', '.join(map(str, rest))}", markup=False, soft_wrap=True)


def analyze(
    path: str | os.PathLike[str],
    config: AnalysisConfig | None = None,
    *,
    targets: Sequence[float | Target] | None = None,
    output: str | os.PathLike[str] | None = None,
    figures: bool = True,
    suggestions: bool = False,
) -> Report:
    """Critical batch size with an interval, per sweep, optimizer and target; writes tables, figures and
    ``report.json``.

    Args:
        path: one sweep, or a folder of sweeps.
        config: how the numbers are made.
        targets: values of each sweep's own metric, or whole targets; ``None`` takes each sweep's own target. Targets
            easier than a sweep's own are read from the same curves.
        output: folder to write; ``analysis`` inside ``path`` when absent.
        figures: whether to draw figures.
        suggestions: whether to work out which trials would help, see :func:`analysis.questions.suggest.suggest`.

    Raises:
        ConfigError: if an argument is out of its domain or a target cannot be used.
        ResultsError: if there are no usable results at ``path``, or ``output`` cannot be written.
    """
    config = config or AnalysisConfig()
    results = load(path)
    found = answers(results, config, targets=targets)
    report = Report(
        path=Path(path),
        output=Path(path) / "analysis" if output is None else Path(output),
        answers=tuple(found),
        confidence=config.confidence,
        suggestions=tuple(filter(None, map(suggest, found))) if suggestions else None,
        notes=tuple(results.notes),
    )
    return _write(report, figures=figures)


def fit_to_json(answer: Answer, answers: Sequence[Answer]) -> dict[str, Any]:
    """An answer as plain JSON values, with what its fit is worth and the parameters of laws across ``answers``."""
    return answer.to_json() | {"definitions": critical_to_json(answer, answers)}


def _in_words(suggestions: Sequence[Suggestion]) -> Iterator[str]:
    """Lines for a person; the command on a line of its own, to be copied."""
    if not suggestions:
        yield "suggestions: none, no trials of this protocol would help"
    for entry in suggestions:
        sizes, seeds = (", ".join(map(str, values)) for values in (entry.batch_sizes, entry.seeds))
        count = "trials (learning rates are searched)" if entry.trials is None else f"{entry.trials} trials"
        gain = (
            f", for an interval {entry.interval_factor:.2g} times as wide (in its logarithm)"
            if entry.interval_factor is not None and entry.interval_factor < 1
            else ""
        )
        yield f"suggested for {entry.group.optimizer}, {entry.target}: {'; '.join(entry.reasons)}"
        cost = f"{tables.number(entry.cost)} {entry.group.example_unit}s"
        yield f"  {count} at batch size {sizes} with seeds {seeds}, about {cost}{gain}"
        yield f"  {entry.command}" if entry.command else "  (this sweep was not run by cbs sweep: no command)"


def _write(report: Report, *, figures: bool) -> Report:
    with in_one_piece(report.output) as draft:
        names = tables.write(report.answers, draft, confidence=report.confidence)
        names += definition_tables.write(report.answers, draft, confidence=report.confidence)
        if figures:
            from analysis.present.figures import write_all

            names += write_all(report.answers, draft)
        report = replace(report, files=tuple(report.output / name for name in (*names, REPORT)))
        (draft / REPORT).write_text(json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")
    return report
