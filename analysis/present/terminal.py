"""Print a table on a screen of any width: whole, in several blocks, or one block per row.

Numbers are never broken or cut. If a table does not fit, intervals go below their values; then columns go into further
blocks that repeat the names of the rows; then every row becomes a block of lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from analysis.present.table import Column, Table

_GAP = 2


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


def show(table: Table, console: Console, *, wide: bool = False) -> None:
    """Print title, table and the lines below it; only the lines if the table has no rows."""
    table = table.shown(wide=wide)
    if table.rows:
        for part in (*_wrapped(table.title, console.width), *laid_out(table, console.width)):
            console.print(part, soft_wrap=isinstance(part, Text))
    for line in table.lines:
        say(line, console)


def say(sentence: str, console: Console) -> None:
    """Print a sentence without breaking words; an indented one is a command to copy and stays on one line."""
    lines = [Text(sentence)] if sentence.startswith(" ") else _wrapped(sentence, console.width)
    for line in lines:
        console.print(line, soft_wrap=True)


def laid_out(table: Table, width: int) -> Iterator[RenderableType]:
    """Yield what is printed of the columns of ``table`` on a screen of ``width`` characters."""
    cells = table.cells()
    plain, stacked = (
        [
            _Laid(column, [joint.join(filter(None, row[place])) for row in cells])
            for place, column in enumerate(table.columns)
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
        for place, block in enumerate(blocks):
            if place:
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
    for entry in columns:
        size = min(entry.most, entry.least + spare)
        spare -= size - entry.least
        justify: JustifyMethod = "left" if entry.column.words else "right"
        grid.add_column(Text(entry.column.heading), justify=justify, width=size, overflow="fold")
    for row in zip(*(entry.texts for entry in columns), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _wrapped(text: str, width: int, indent: str = "") -> list[Text]:
    """Return lines of whole words; a word longer than a line is left to the terminal."""
    wrapper = textwrap.TextWrapper(width, indent, indent, break_long_words=False, break_on_hyphens=False)
    return [Text(line) for line in wrapper.wrap(text)]
