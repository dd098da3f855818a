"""Every definition of the critical batch size side by side: CSV, LaTeX (booktabs) and for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.estimate.definitions import in_words
from analysis.phrases import literal
from analysis.present.tables import booktabs, escape, example_units, number, percent, target_cell, titled, with_interval

if TYPE_CHECKING:
    from rich.console import RenderableType

    from analysis.estimate.estimates import Critical
    from analysis.estimate.result import Answer

COLUMNS = (
    "sweep", "workload", "optimizer", "metric", "target", "direction", "definition", "value", "low", "high",
    "value_tokens", "example_unit", "tokens_per_example", "confidence", "options", "remark",
)  # fmt: skip


def side_by_side(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per answer and definition, see :data:`COLUMNS`.

    ``value``, ``low`` and ``high`` are in examples, empty where the data leave them open; ``value_tokens`` is ``value``
    in tokens; ``options`` is a JSON object.
    """
    rows = [_row(answer, entry) for answer in answers for entry in answer.estimate.critical.values()]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(answer: Answer, entry: Critical) -> dict[str, Any]:
    group, tokens = answer.group, answer.group.tokens_per_example
    return {
        "sweep": group.sweep,
        "workload": group.workload,
        "optimizer": group.optimizer,
        "metric": answer.target.metric,
        "target": answer.target.value,
        "direction": answer.target.direction,
        "definition": entry.definition,
        "value": entry.value,
        "low": entry.interval[0],
        "high": entry.interval[1],
        "value_tokens": None if entry.value is None or tokens is None else entry.value * tokens,
        "example_unit": group.example_unit,
        "tokens_per_example": tokens,
        "confidence": answer.confidence,
        "options": json.dumps(entry.options),
        "remark": entry.remark,
    }


def _cells(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    """Headings and text cells of the short table; names that are the same in every row are left out."""
    headings = [name for name in ("sweep", "workload") if len({getattr(a.group, name) for a in answers}) > 1]
    headings += ["optimizer"]
    headings += ["target"] if len({str(answer.target) for answer in answers}) > 1 else []
    rows = []
    for answer in answers:
        about = {"optimizer": answer.group.optimizer, "target": str(answer.target)}
        about |= {"sweep": answer.group.sweep, "workload": answer.group.workload}
        for entry in answer.estimate.critical.values():
            tokens = answer.group.tokens_per_example
            rows.append(
                [
                    *(about[name] for name in headings),
                    in_words(entry.definition, entry.options),
                    with_interval(entry.value, entry.interval),
                    number(entry.value * tokens if entry.value and tokens else None),
                ]
            )
    headings += ["definition", "critical batch size", "tokens"]
    if not any(answer.group.tokens_per_example for answer in answers):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    return headings, rows


def terminal_table(
    answers: Sequence[Answer], *, confidence: float = 0.95, names: Mapping[str, str] = MappingProxyType({})
) -> RenderableType:
    """All definitions of every answer for :mod:`rich`; the remarks below, each once with the rows it is about.

    ``names`` are headings in place of ours.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    headings, rows = _cells(answers)
    title = f"Definitions side by side in {example_units(answers)} [{percent(confidence)} % interval]"
    title += titled(answers)
    table = Table(box=box.SIMPLE_HEAD, title=literal(title), pad_edge=False, collapse_padding=True)
    for name in headings:
        right = name in ("critical batch size", "tokens")
        table.add_column(names.get(name, name), justify="right" if right else "left", overflow="fold", no_wrap=right)
    if "target" in headings:
        cells = {str(answer.target): target_cell(answer, answers) for answer in answers}
        at = headings.index("target")
        rows = [[*row[:at], cells[row[at]], *row[at + 1 :]] for row in rows]
    last: list[str] = []
    for row in rows:
        first = row[: headings.index("definition")]
        if last and first != last:
            table.add_section()
        shown = [""] * len(first) if first == last else first
        table.add_row(*map(literal, [*shown, *row[len(first) :]]))
        last = first
    return Group(table, *map(Text, _remarks(answers)))


def _remarks(answers: Sequence[Answer]) -> list[str]:
    """Every remark once, with the answers it is about where these are not all."""
    about: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        for entry in answer.estimate.critical.values():
            if entry.remark:
                about.setdefault((entry.definition, entry.remark), []).append(answer)
    lines = []
    for (definition, remark), members in about.items():
        scope = ""
        if len(members) < len(answers):
            by_name: dict[str, list[str]] = {}
            for answer in members:
                by_name.setdefault(answer.group.optimizer, []).append(f"{answer.target.value:g}")
            several = len({str(answer.target) for answer in answers}) > 1
            parts = [f"{name} at {', '.join(targets)}" if several else name for name, targets in by_name.items()]
            scope = f" ({'; '.join(parts)})"
        lines.append(f"{definition}{scope}: {remark}")
    return lines


def latex(answers: Sequence[Answer], *, confidence: float = 0.95) -> str:
    """The same as a LaTeX ``tabular`` for the booktabs package, all text escaped."""
    headings, rows = _cells(answers)
    return booktabs(
        f"critical batch sizes in {example_units(answers)}; brackets: {percent(confidence)} percent interval",
        "".join("r" if name in ("critical batch size", "tokens") else "l" for name in headings),
        [escape(name) for name in headings],
        rows,
    )


def write(answers: Sequence[Answer], folder: Path, *, confidence: float = 0.95) -> list[str]:
    """Write ``definitions.csv`` and ``definitions.tex``; returns the names."""
    side_by_side(answers).to_csv(folder / "definitions.csv", index=False)
    (folder / "definitions.tex").write_text(latex(answers, confidence=confidence))
    return ["definitions.csv", "definitions.tex"]
