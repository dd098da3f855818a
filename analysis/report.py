"""One call from a results folder to answers, tables and figures."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import tables
from analysis.answers import Answer, answers
from analysis.load import load
from analysis.method import Method
from cbs.errors import ResultsError
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
        notes: what was left out, one line each.
        files: every file written.
    """

    path: Path
    output: Path
    answers: tuple[Answer, ...]
    confidence: float
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values that :func:`json.dumps` writes with ``allow_nan=False``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "confidence": self.confidence,
            "fits": [answer.to_json() for answer in self.answers],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }

    def print(self, console: Console) -> None:
        """The short table with its advice, the notes, and where the files are."""
        console.print(tables.terminal_table(self.answers, confidence=self.confidence))
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
    *,
    targets: Sequence[float | Target] | None = None,
    output: str | os.PathLike[str] | None = None,
    definition: str = "pareto",
    options: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    figures: bool = True,
) -> Report:
    """Critical batch size with an interval, per sweep, optimizer and target; writes tables, figures and
    ``report.json``.

    Args:
        path: one sweep, or a folder of sweeps.
        targets: values of each sweep's own metric, or whole targets; ``None`` takes each sweep's own target. Targets
            easier than a sweep's own are read from the same curves.
        output: folder to write; ``analysis`` inside ``path`` when absent.
        definition: name in :data:`analysis.definitions.DEFINITIONS`.
        options: of the definition.
        confidence: of every interval.
        resamples: of every bootstrap.
        seed: of every bootstrap; the same seed gives the same numbers.
        figures: whether to draw figures.

    Raises:
        ConfigError: if an argument is out of its domain or a target cannot be used.
        ResultsError: if there are no usable results at ``path``, or ``output`` cannot be written.
    """
    method = Method(definition=definition, options=options or {}, confidence=confidence, resamples=resamples, seed=seed)
    results = load(path)
    found = answers(results, method, targets=targets)
    report = Report(
        path=Path(path),
        output=Path(path) / "analysis" if output is None else Path(output),
        answers=tuple(found),
        confidence=confidence,
        notes=tuple(results.notes),
    )
    return _write(report, figures=figures)


def _write(report: Report, *, figures: bool) -> Report:
    """Write everything beside its place, then move file by file, so that a failure leaves no half-written file."""
    output = report.output
    draft = output.parent / f".tmp-{output.name}-{uuid.uuid4().hex}"
    try:
        draft.mkdir(parents=True)
        names = tables.write(report.answers, draft, confidence=report.confidence)
        if figures:
            from analysis.figures import write_all

            names += write_all(report.answers, draft)
        report = replace(report, files=tuple(output / name for name in (*names, REPORT)))
        (draft / REPORT).write_text(json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")
        for name in (*names, REPORT):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft / name, output / name)
    except OSError as error:
        raise ResultsError(
            f"cannot write the analysis to {output}: {error.strerror or error}; choose another folder with --output"
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return report
