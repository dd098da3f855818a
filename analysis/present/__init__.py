"""Present results: terminal, CSV, LaTeX, JSON, figures, HTML.

How a type of result is presented is defined in the ``tables`` module of its question or extension, found by the type.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from analysis.estimate.diagnosis import Verdict
from analysis.figure_options import AS_STORED, FigureLabels, venue_named
from analysis.formatting import plural
from analysis.present.table import Table, for_paper, latex, lines_of, print_part
from cbs.errors import ResultsError, reason
from cbs.files import refuse_links
from cbs.registry.extensions import load, modules

if TYPE_CHECKING:
    from rich.console import Console


# Lines that a terminal shows of an answer, the commands below it and the places of its files among them
LINES = 15

# Lines that a long table leaves to the sentences below it: one of advice, and what may be quoted
FOR_SENTENCES = 3

VERDICT = "verdict"  # The heading of the column that says what speaks against a row

SCHEMA_VERSION = 1  # Schema version of all JSON output; raised when a key changes its name, unit or meaning


class Result(Protocol):
    """Interface of what a question returns."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that :func:`json.dumps` accepts with ``allow_nan=False``."""


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How a result is presented.

    Attributes:
        shown: tables and sentences for the terminal, in order: what answers the question, which a screen holds.
        wide: tables and sentences that follow with ``--wide``.
        then: commands that take the answer further, to be copied.
        tables: tables to write, by the name of the file without its suffix.
        latex: names of the tables that are also written as LaTeX.
        paper: for some of these tables, keys of the columns that the short LaTeX version has in addition to the names
            of the rows, see :func:`analysis.present.table.for_paper`; all columns are then in ``NAME_full.tex``.
        json: name of the file with the whole result.
        drawn_in: folder of the figures; empty for the folder of the tables.
    """

    shown: Sequence[Table | str]
    wide: Sequence[Table | str] = ()
    then: Sequence[str] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    latex: Sequence[str] = ()
    paper: Mapping[str, Sequence[str]] = field(default_factory=dict)
    json: str = ""
    drawn_in: str = "figures"


@functools.singledispatch
def presentation(result: Any) -> Presentation:
    """Return how to present ``result``; the ``tables`` module of every question and extension registers its types."""
    for module, _ in modules("tables", "analysis.questions"):
        load(module)  # one at a time, because each imports its question
        present = presentation.dispatch(type(result))
        if present is not presentation.dispatch(object):
            return present(result)
    raise TypeError(f"nothing says how to present a {type(result).__name__}")


def show(result: Result, console: Console, *, wide: bool = False, files: Sequence[Path] = ()) -> None:
    """Print what a screen holds of a result, with ``wide`` every quantity of it; then what to run next, and where the
    ``files`` are that :func:`write` returned."""
    presented, by_folder = presentation(result), Counter(path.parent for path in files)
    parts = [*presented.shown, *(presented.wide if wide else ())]
    parts = [part if isinstance(part, str) else part.shown(wide=wide) for part in parts]
    parts, then = [part for part in parts if isinstance(part, str) or part.rows or part.lines], presented.then
    if not wide:
        parts, then = on_screen(parts, then, console, LINES - len(by_folder))
    for index, part in enumerate(parts):
        if index and isinstance(part, Table) and isinstance(parts[index - 1], Table):
            console.print()
        print_part(part, console)
    for command in then:
        console.print(f"next: {command}", markup=False, soft_wrap=True)
    for folder, count in by_folder.items():
        names = plural(count, "file") if count > 1 else next(path.name for path in files if path.parent == folder)
        console.print(f"in {folder}: {names}", markup=False, soft_wrap=True)


def write(
    result: Result,
    folder: str | os.PathLike[str],
    *,
    figures: str | None = "default",
    every: bool = True,
    labels: FigureLabels = AS_STORED,
) -> tuple[Path, ...]:
    """Write tables (CSV, LaTeX), figures and JSON of a result into ``folder``, creating it if needed; all or nothing.

    Args:
        figures: page width for the figures, one of :data:`analysis.figure_options.VENUES`; ``None`` for no figures.
        every: whether all figures are drawn, or only the main ones.
        labels: names of the curves in the figures, and whether a panel alone has a title.

    Raises:
        ConfigError: if a curve that ``labels`` renames does not exist, or two would get one name.
        ResultsError: if the folder cannot be written.
    """
    presented, folder = presentation(result), Path(folder)
    with in_one_piece(folder) as draft:
        written = []
        for name, table in presented.tables.items():
            written.append(draft / f"{name}.csv")
            table.frame().to_csv(written[-1], index=False)
            if name in presented.latex:
                keys = presented.paper.get(name)
                texts = {name: latex(for_paper(table, keys), fits=True)} if keys else {}
                for stem, text in (texts | {f"{name}_full" if keys else name: latex(table)}).items():
                    written.append(draft / f"{stem}.tex")
                    written[-1].write_text(text)
        if figures is not None:
            from analysis.present.figures import figures_of

            pictures = list(figures_of(result, every=every))
            labels.check(picture.table for picture in pictures)
            for picture in pictures:
                written += picture.write(draft / presented.drawn_in, venue_named(figures), labels, asked=every)
        written.append(draft / presented.json)
        files = tuple(folder / path.relative_to(draft) for path in dict.fromkeys(written))
        text = json.dumps(to_json(result, files=files), indent=2, allow_nan=False)
        (draft / presented.json).write_text(text + "\n")
    return files


@contextlib.contextmanager
def in_one_piece(output: Path) -> Iterator[Path]:
    """Yield a draft folder within ``output``; its files are moved up, one by one, once the block has ended.

    Raises ``ResultsError`` if the folder cannot be written.
    """
    draft = output / f".tmp-{uuid.uuid4().hex}"
    try:
        draft.mkdir(parents=True)
        yield draft
        for path in sorted(path for path in draft.rglob("*") if path.is_file()):
            destination = output / path.relative_to(draft)
            refuse_links(output, destination.parent)
            destination.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, destination)
    except OSError as error:
        raise ResultsError(f"cannot write to {output}: {reason(error)}; choose another folder with --output") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            output.rmdir()  # succeeds only if it is empty


def to_json(result: Result, *, files: Sequence[Path] = ()) -> dict[str, Any]:
    """Return a result as plain JSON values that :func:`json.dumps` accepts with ``allow_nan=False``."""
    return {"schema_version": SCHEMA_VERSION} | result.to_json() | {"files": [str(path) for path in files]}


def on_screen(
    parts: Sequence[Table | str], then: Sequence[str], console: Console, lines: int = LINES
) -> tuple[list[Table | str], list[str]]:
    """Return the parts and commands that ``lines`` hold, in their order, and after them how much is left out: of rows
    with a verdict that is not ``ok``, how many have it.

    Of a table the first rows are kept, of sentences those that fit whole, of commands the first: they come in the order
    of what an answer lacks most.
    """
    if _height(parts, console) + len(then) <= lines:
        return list(parts), list(then)
    for room in range(max(1, lines - 1 - len(then[:1])), 0, -1):  # what is left out takes a line, or several
        kept, left, doubted = _kept(parts, console, room)
        by_verdict = ", ".join(f"{verdict}: {count}" for verdict, count in doubted.items())
        missing = ", ".join(
            plural(count, name) + (f" ({by_verdict})" if name == "row" and doubted else "")
            for name, count in (Counter(command=len(then[1:])) + left).items()
        )
        shown = [*kept, f"--wide shows the rest: {missing}"]
        if _height(shown, console) + len(then[:1]) <= lines:
            break
    return shown, list(then[:1])


def _kept(
    parts: Sequence[Table | str], console: Console, room: int
) -> tuple[list[Table | str], Counter[str], Counter[str]]:
    """Return the parts that fit, how many of which kind do not, and the verdicts of these that are not ``ok``."""
    kept, left, doubted = list[Table | str](), Counter[str](), Counter[str]()
    for index, part in enumerate(parts):
        rows, sentences = ([], [part]) if isinstance(part, str) else (part.rows, part.lines)
        shown = None if isinstance(part, str) else replace(part, lines=())
        if shown is not None and rows:
            below = [*sentences, *(other for other in parts[index + 1 :] if isinstance(other, str))]
            free = room - min(FOR_SENTENCES, _height(below, console)) - _gap(kept)
            count = _rows_within(shown, free, console, least=0 if kept else 1)
            left["row"] += len(rows) - count
            verdicts = [column for column in shown.columns if column.heading == VERDICT]
            said_of = (column.cell(row)[0] for column in verdicts for row in rows[count:])
            doubted += Counter(verdict for verdict in said_of if verdict != Verdict.OK)
            if not count:
                left["sentence"] += len(sentences)
                continue
            shown = replace(shown, rows=rows[:count])
            room -= _height([shown], console) + _gap(kept)
        said: list[str] = []
        for sentence in sentences:
            if (height := _height([sentence], console)) <= room:
                said, room = [*said, sentence], room - height
            else:
                left["sentence"] += 1
        kept += said if shown is None else [replace(shown, lines=said)]
    return kept, left, doubted


def _gap(kept: Sequence[Table | str]) -> int:
    """Lines between what stands and a table after it."""
    return int(bool(kept) and isinstance(kept[-1], Table))


def _rows_within(table: Table, room: int, console: Console, least: int) -> int:
    """Return how many of the first rows fit."""
    for count in range(len(table.rows), least, -1):
        if _height([replace(table, rows=table.rows[:count])], console) <= room:
            return count
    return least


def _height(parts: Iterable[Table | str], console: Console) -> int:
    heights, last = 0, None
    for part in parts:
        between = isinstance(part, Table) and isinstance(last, Table)
        heights += between + sum(len(console.render_lines(line, pad=False)) for line in lines_of(part, console.width))
        last = part
    return heights
