"""One description of a table, from which the terminal, CSV, LaTeX and HTML are made.

A description consists of columns over rows. A row is any object that a question returns (an answer, a plan, a law, a
mapping) or a tuple of such objects, and a column knows how to read its value and its interval from a row.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from analysis.formatting import DASH, beyond, ends, number

Reader = str | Callable[..., Any]
"""How to read a value: a function of the parts of a row, or a dotted path of attributes and mapping keys, which gives
``None`` if anything on the way is ``None``. The path starts at the first part of a row that has its first name."""

_GAP = 2  # blanks between two columns


def text_of(value: Any) -> str:
    """Format a value for display."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else number(value)


@dataclass(frozen=True)
class Column:
    """One quantity of a table.

    Attributes:
        key: name in CSV, with the unit if it has one; empty for a column that is only displayed.
        value: how to read it from a row; the key if empty.
        heading: heading for display; empty for a column that is only written to files.
        interval: how to read its interval ``(low, high)``; ``None`` for a quantity without one.
        latex: heading in LaTeX; the escaped ``heading`` if empty.
        text: formats the value for display.
        ends: names of the ends of the interval in CSV; ``key_low`` and ``key_high`` if ``None``.
        left: whether it is text, left-aligned and broken between words, rather than a number, which is never broken.
        name: whether it names the row; repeated in every block of a table that is too wide for the screen. Implies
            ``left``.
        wide: whether it is shown only if all quantities are requested.
        times: factor that converts its values to the unit of the heading.
        signed: whether it may be negative, so that an open lower end of its interval is minus infinity.
    """

    key: str
    value: Reader = ""
    heading: str = ""
    interval: Reader | None = None
    latex: str = ""
    text: Callable[[Any], str] = text_of
    ends: tuple[str, str] | None = None
    left: bool = False
    name: bool = False
    wide: bool = False
    times: float = 1.0
    signed: bool = False

    @property
    def words(self) -> bool:
        """Whether the column holds text."""
        return self.left or self.name

    @property
    def names(self) -> list[str]:
        """Its names in CSV."""
        return [self.key, *([] if self.interval is None else self.ends or (f"{self.key}_low", f"{self.key}_high"))]

    def read(self, row: Any) -> Any:
        """Return its value in a row."""
        return self._in_unit(_read(row, self.value or self.key))

    def read_interval(self, row: Any) -> Any:
        """Return its interval in a row; ``None`` if there is none."""
        interval = None if self.interval is None else _read(row, self.interval)
        return interval if interval is None or self.times == 1.0 else tuple(map(self._in_unit, interval))

    def _in_unit(self, value: Any) -> Any:
        return value if value is None or self.times == 1.0 else value * self.times

    def cell(self, row: Any) -> tuple[str, str]:
        """Return its value and its interval in a row as texts; the interval is empty if there is none. In a ``wide``
        column it is a dash in brackets if it is undefined although there is a value. Without a value but with one end
        of the interval the value is :func:`~analysis.formatting.beyond`."""
        value, interval = self.read(row), self.read_interval(row)
        if value is None and interval is not None and (bound := beyond(interval)):
            return bound, ""
        unknown = f"[{DASH}]" if self.wide and value is not None else ""
        return self.text(value), "" if interval is None else ends(interval, signed=self.signed) or unknown


def quantity(key: str, heading: str = "", of: str = "", latex: str = "", **more: Any) -> Column:
    """Return the column of a :class:`~analysis.quantities.Quantity` with its interval; ``of`` is the path to it, by
    default the key."""
    return Column(key, f"{of or key}.value", heading, f"{of or key}.interval", latex, **more)


def files(*names: str, of: str = "") -> tuple[Column, ...]:
    """Return columns that are only written to files; ``of`` is the start of the path to each."""
    return tuple(Column(name, f"{of}{name}") for name in names)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns over rows.

    Attributes:
        columns, rows: see the module docstring.
        lines, wide_lines: sentences below it; the latter if all quantities are requested.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Any]
    title: str = ""
    lines: Sequence[str] = ()
    wide_lines: Sequence[str] = ()

    def shown(self, *, wide: bool = False) -> Table:
        """Return the table with the columns and lines that are displayed: no column without any value, and no row if
        that leaves nothing but names."""
        named = [column for column in self.columns if column.heading and (wide or not column.wide)]
        columns = tuple(column for column in named if any(column.cell(row)[0] not in ("", DASH) for row in self.rows))
        rows = self.rows if columns == tuple(named) or not all(column.name for column in columns) else ()
        return replace(self, columns=columns, rows=rows, lines=(*self.lines, *(self.wide_lines if wide else ())))

    def cells(self) -> list[list[tuple[str, str]]]:
        """Return value and interval of every cell as texts, see :meth:`Column.cell`."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def frame(self) -> pd.DataFrame:
        """Return the columns that are written to files."""
        kept = [column for column in self.columns if column.key]
        rows: list[list[Any]] = [[] for _ in self.rows]
        for row, values in zip(self.rows, rows, strict=True):
            for column in kept:
                values += [column.read(row)]
                values += [] if column.interval is None else column.read_interval(row) or (None, None)
        return pd.DataFrame(rows, columns=[name for column in kept for name in column.names])


def pivot(rows: Sequence[Any], down: Column, across: Column) -> Table:
    """Return a table with one row for every value of ``down`` and one column for every key of ``across``, with its
    value and interval."""
    by_key: dict[Any, dict[str, Any]] = {}
    for row in rows:
        by_key.setdefault(down.read(row), {})[text_of(_read(row, across.key))] = row
    columns = [replace(down, value=lambda cells: down.read(next(iter(cells.values()))), name=True)]
    for title in dict.fromkeys(text_of(_read(row, across.key)) for row in rows):

        def read(of: Callable[[Any], Any], title: str = title) -> Reader:
            return lambda cells: of(cells[title]) if title in cells else None

        columns.append(Column("", read(across.read), title, read(across.read_interval)))
    return Table(columns=tuple(columns), rows=list(by_key.values()))


def _read(row: Any, reader: Reader) -> Any:
    parts = row if isinstance(row, tuple) else (row,)
    if callable(reader):
        return reader(*parts)
    first = reader.partition(".")[0]
    known = (part for part in parts[:-1] if (first in part if isinstance(part, Mapping) else hasattr(part, first)))
    value = next(known, parts[-1])
    for name in reader.split("."):
        if value is not None:
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


ESCAPED = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "∞": r"$\infty$", "–": "--"}
)
"""Replacements of characters in LaTeX, for ``str.translate``."""

# Number of columns for which a text column of a paper has room
MOST_COLUMNS = 6

# Lengths in LaTeX points: the text width of NeurIPS (5.5 in), a character of the table, and the gap between
# columns.
_TEXT_COLUMN, _LETTER, _BETWEEN = 397.0, 5.0, 12.0

_SHORT = 12  # Words up to this number of characters are never broken


def for_paper(table: Table, keys: Sequence[str]) -> Table:
    """Return the table with at most :data:`MOST_COLUMNS` columns: those that name its rows, the last of ``keys`` (keys,
    or headings of columns without one), and as many of the others, in order, as there is room for."""
    table = table.shown(wide=True)
    names = [column for column in table.columns if column.name]
    named = {column.key or column.heading: column for column in table.columns if not column.name}
    room = max(0, MOST_COLUMNS - 1 - len(names))
    kept = [*names, *[named[key] for key in keys[:-1] if key in named][:room], named[keys[-1]]]
    return replace(table, columns=tuple(kept))


def latex(table: Table, *, fits: bool = False) -> str:
    """Return everything that is displayed as a ``tabular`` for the booktabs package, after a comment with the title.

    Written without the Styler of pandas, whose import takes longer than the whole analysis of a small sweep.

    Args:
        fits: whether to break words of text columns if the table would be wider than the text of NeurIPS.
    """
    table = table.shown(wide=True)
    headings = [column.latex or column.heading.translate(ESCAPED) for column in table.columns]
    texts = [[" ".join(filter(None, cell)) for cell in row] for row in table.cells()]
    lengths = [max(map(len, cells)) for cells in zip([c.heading for c in table.columns], *texts, strict=True)]
    long = [index for index, column in enumerate(table.columns) if column.words and lengths[index] > _SHORT]
    letters = ["l" if column.words else "r" for column in table.columns]
    spare = _TEXT_COLUMN - _BETWEEN * len(letters) - _LETTER * sum(lengths)
    if fits and spare < 0:
        total = sum(lengths[index] for index in long)
        for index in long:
            letters[index] = f"p{{{max(_LETTER * _SHORT, lengths[index] * (_LETTER + spare / total)):.0f}pt}}"
    cells = [[text.translate(ESCAPED) for text in row] for row in texts]
    if fits:
        cells = [[_BREAK.sub(r"\g<0>\\allowbreak{}", text) for text in row] for row in cells]
    first, *rest = (" & ".join(row) + r" \\" for row in (headings, *cells))
    lines = [rf"\begin{{tabular}}{{{''.join(letters)}}}", r"\toprule", first, r"\midrule", *rest, r"\bottomrule"]
    return "\n".join([f"% {table.title}", *lines, r"\end{tabular}"]) + "\n"


_BREAK = re.compile(r"(?<=\w)(?:,|\(|=|\\_|/)(?=\w)")  # Places at which a name without spaces may be broken


@dataclass(frozen=True)
class _Laid:
    """A column with the texts of its cells; ``least`` and ``most`` are its smallest and largest useful widths."""

    column: Column
    texts: Sequence[str]

    @property
    def most(self) -> int:
        return max(cell_len(line) for text in (self.column.heading, *self.texts) for line in text.split("\n"))

    @property
    def least(self) -> int:
        words = [self.column.heading, *(self.texts if self.column.words else ())]
        lines = [line for text in ([] if self.column.words else self.texts) for line in text.split("\n")]
        return max((cell_len(part) for part in (*" ".join(words).split(), *lines)), default=0)


def lines_of(part: Table | str, width: int) -> Iterator[RenderableType]:
    """Yield what is printed of a sentence, whose words are not broken, or of a table with the sentences below it: only
    these if it has no rows. An indented sentence is a command to copy and stays on one line."""
    if isinstance(part, str):
        yield from [Text(part)] if part.startswith(" ") else _wrapped(part, width)
        return
    if part.rows:
        yield from (*_wrapped(part.title, width), *laid_out(part, width))
    for sentence in part.lines:
        yield from lines_of(sentence, width)


def print_part(part: Table | str, console: Console) -> None:
    """Print a sentence or a table, see :func:`lines_of`."""
    for line in lines_of(part, console.width):
        console.print(line, soft_wrap=isinstance(line, Text))


def text_lines(table: Table, width: int) -> list[str]:
    """Return what is printed of ``table`` on a screen of ``width`` characters as lines without styles."""
    page = io.StringIO()
    print_part(table.shown(), Console(file=page, width=width, color_system=None, force_terminal=False))
    return [line.rstrip() for line in page.getvalue().splitlines()]


def laid_out(table: Table, width: int) -> Iterator[RenderableType]:
    """Yield what is printed of the columns of ``table`` on a screen of ``width`` characters."""
    cells = table.cells()
    plain, stacked = (
        [
            _Laid(column, [joint.join(filter(None, row[index])) for row in cells])
            for index, column in enumerate(table.columns)
        ]
        for joint in (" ", "\n")
    )
    if _width(plain) <= width:
        yield _grid(plain, width)
        return
    names, others = ([entry for entry in stacked if entry.column.name is named] for named in (True, False))
    blocks: list[list[_Laid]] = [[]]
    for entry in others:
        if blocks[-1] and _width([*names, *blocks[-1], entry]) > width:
            blocks.append([])
        blocks[-1].append(entry)
    if all(_width([*names, *block]) <= width for block in blocks) and len(blocks) <= max(1, len(stacked) // 2):
        for index, block in enumerate(blocks):
            if index:
                yield Text()
            yield _grid([*names, *block], width)
        return
    for row in range(len(cells)):
        for title in _wrapped(", ".join(entry.texts[row] for entry in plain if entry.column.name), width):
            title.stylize("bold")
            yield title
        for heading, text in ((entry.column.heading, entry.texts[row]) for entry in plain if not entry.column.name):
            if cell_len(line := f"  {heading}: {text}") <= width:
                yield Text(line)
            else:
                yield from (Text(f"  {heading}:"), *_wrapped(text, width, indent="    "))


def _width(columns: Sequence[_Laid]) -> int:
    return sum(entry.least for entry in columns) + _GAP * (len(columns) - 1)


def _grid(columns: Sequence[_Laid], width: int) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=False)
    spare = width - _width(columns)
    sizes = {}
    for entry in sorted(columns, key=lambda entry: not entry.column.words):  # a heading breaks before the words below
        sizes[id(entry)] = min(entry.most, entry.least + spare)
        spare -= sizes[id(entry)] - entry.least
    for entry in columns:
        justify: JustifyMethod = "left" if entry.column.words else "right"
        grid.add_column(Text(entry.column.heading), justify=justify, width=sizes[id(entry)], overflow="fold")
    for row in zip(*(entry.texts for entry in columns), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _wrapped(text: str, width: int, indent: str = "") -> list[Text]:
    """Return lines of whole words; a word longer than a line is left to the terminal."""
    wrapper = textwrap.TextWrapper(width, indent, indent, break_long_words=False, break_on_hyphens=False)
    return [Text(line) for line in wrapper.wrap(text)]
