"""The atlas: a page with a row for every published statement that recipes look for, made from stored verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from analysis.quantities import Quantity
from cbs.errors import DataError, ResultsError, reason
from cbs.files import atomic_file
from extensions.papers.experiments import PAPERS, Reproduced
from extensions.papers.reproducing.reproduce import SCHEMA
from extensions.papers.reproducing.telling import told

HEAD = """# Atlas: what of the literature was found again

Which published statements hold here? Each was written into its recipe before the recipe was first run. Tables have
those with an answer: the published value, ours with a 95 % interval, and the
[verdict](../../../docs/papers.md#verdicts). The numbers of those that cannot be told are in the files beside this page,
from which `cbs recipes atlas` makes it. Seconds are of one core.

Tiny models on little data are not the models of the papers: a statement that differs here may hold there.
"""

_KEYS = ("recipe", "scale", "title", "paper", "command", "date", "verdicts", "complete")


def atlas(folder: Path, page: Path) -> int:
    """Write the page of all tables of verdicts in a folder, and return its number of statements.

    Raises:
        ResultsError: if there is no table, or the page cannot be written.
        DataError: if a file is not a table of verdicts.
    """
    tables = [_table(path) for path in sorted(folder.glob("*.json"))]
    if not tables:
        raise ResultsError(f"no table of verdicts in {folder}; cbs reproduce NAME --record {folder} writes one")
    with atomic_file(page, "the page ", "; choose another file with --output") as draft:
        draft.write_text("\n".join(lines(tables)) + "\n")
    return sum(len(table["verdicts"]) for table in tables)


def lines(tables: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD
    counts = Counter(row["verdict"] for table in tables for row in table["verdicts"])
    yield "In all: " + ", ".join(f"{counts[str(each)]} {each}" for each in Reproduced) + "."
    if seconds := [table["seconds"] for table in tables if "seconds" in table]:
        some = "" if len(seconds) == len(tables) else f", {len(seconds)} of {len(tables)} measured"
        yield f"A recipe takes {median(seconds):,.0f} s in the median, {max(seconds):,} s at most{some}."
    dates = [table["date"] for table in tables]
    if missing := [name for name in PAPERS.names() if name not in {table["recipe"] for table in tables}]:
        yield f"\nNot recorded here, so neither found nor missed: {', '.join(f'`{name}`' for name in missing)}."
    yield f"Recorded {' to '.join(sorted({min(dates), max(dates)}))}."
    nothing = [table for table in tables if table["complete"] and len(_unknown(table)) == len(table["verdicts"])]
    for table in tables:
        if table not in nothing:
            yield from _section(table)
    if nothing:
        yield "\n## Recipes without an answer at this scale\n\nTheir statements: `cbs reproduce NAME --dry-run`.\n"
    for table in nothing:
        yield f"- {_source(table)}: {table['title']}"


def _unknown(table: dict[str, Any]) -> list[str]:
    """The statements of a recipe that cannot be told."""
    return [row["claim"] for row in table["verdicts"] if row["verdict"] == Reproduced.UNKNOWN]


def _source(table: dict[str, Any]) -> str:
    """Paper, command and time."""
    seconds = f", {table['seconds']:,} s" if "seconds" in table else ""
    return f"{table['paper']}. `{table['command']}`{seconds}"


def _section(table: dict[str, Any]) -> Iterator[str]:
    """Yield the section of a recipe: what was found in a table, then what cannot be told."""
    yield f"\n## {table['title']}\n"
    yield f"{_source(table)}."
    if not table["complete"]:
        yield "Not complete: a limit was reached, or trials failed."
    if answered := [row for row in table["verdicts"] if row["verdict"] != Reproduced.UNKNOWN]:
        yield from _rows(answered)
    if unknown := _unknown(table):
        yield f"\nCannot be told: {'; '.join(unknown)}."


def _rows(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of statements with an answer; the source that most of them share is written once, above it."""
    (source, count), alike = Counter(row["source"] for row in rows).most_common(1)[0], len(rows) > 1
    source = source if alike and 2 * count > len(rows) else ""
    alike = alike and count == len(rows) and len({row["published"] for row in rows}) == 1
    if source or alike:
        said = [
            rows[0]["published"] if alike else "",
            source + (", unless a row says otherwise" if count < len(rows) else ""),
        ]
        yield f"Published: {'; '.join(filter(None, said))}."
    head = ("statement", *([] if alike else ["published"]), "ours", "verdict")
    yield f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}"
    for row in rows:
        numbers = [Quantity(each["value"], tuple(each["interval"])) for each in row["ours"]]
        other = "" if row["source"] == source else f" ({row['source']})"
        published = [] if alike else [row["published"] + other]
        cells = (row["claim"], *published, told(numbers, "; ".join(row["why"])), row["verdict"])
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _table(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a table of verdicts: {reason(error)}") from None
    missing = [key for key in _KEYS if not isinstance(table, dict) or key not in table]
    if missing or table.get("schema_version") != SCHEMA:
        problem = f"lacks {', '.join(missing)}" if missing else "is of another version"
        raise DataError(
            f"{path} is not a table of verdicts that this version reads: it {problem}; remove it, or run again"
        )
    return table
