"""Which column of a table of runs says what, where its titles leave that open: it is asked for, never guessed."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator

from analysis.read import cells
from analysis.read.importers.settings import Settings
from analysis.read.importers.statuses import KNOWN, word_of
from analysis.read.table import Sheet
from cbs.errors import DataError

_RATE = r"(lr|learning[_ ]?rate)"
_BATCH = r"((global|total|effective)\w*[_ ]?batch\w*|(train_)?batch_?size)"
_RIVALS = {"lr": rf"(.*[./_ ])?{_RATE}([_ ]?(peak|max))?", "batch_size": rf"(.*[./])?{_BATCH}"}
"""Patterns of titles that may mean the same as one of ours."""

_ENDS = rf"(.*[./_ ])?((min|final|end)[_ ]?{_RATE}|{_RATE}[_ ]?(min|final|end))"
_PASSES = r"(.*[./])?\w*accum\w*"
_HOW_ENDED = r"(.*[./_ ])?(status|state)"
_PEAK, _WHOLE = "the one at the peak of the schedule", "the one of all examples of an update"


def settled(table: Sheet, settings: Settings) -> Settings:
    """Return the settings with the column that says how runs ended, if its title and its words are such.

    Raises:
        DataError: if another column claims to be the learning rate or the batch size as well, with other numbers, or if
            these look like the end of a schedule, or the examples of one of several passes. Naming a column ends that.
    """
    for name, which in (("lr", _PEAK), ("batch_size", _WHOLE)):
        if name in table.columns and name not in settings.columns:
            for title, row in _doubts(table, name):
                mine, other = (f"{cells.shown(each)} ({table.columns[each][row]})" for each in (name, title))
                raise DataError(
                    f"{table.name}, {table.places[row]}: {mine} and {other} may both be the {name}; say which column "
                    f"is {which} with --column {name}=THEIRS"
                )
    if "status" not in {*settings.columns, *table.columns}:
        for title in table.columns:
            words = {word for cell in table.columns[title] if (word := word_of(cell))}
            # most are known: the others are asked for, but states of a country are none
            known = words & (KNOWN | settings.statuses.keys())
            if re.fullmatch(_HOW_ENDED, title, re.IGNORECASE) and 2 * len(known) > len(words):
                return dataclasses.replace(settings, columns={**settings.columns, "status": title})
    return settings


def _doubts(table: Sheet, name: str) -> Iterator[tuple[str, int]]:
    """Yield the columns that make it doubtful what our ``name`` is, with a row that shows it."""
    ends = _titled(table, _ENDS)
    for title in _titled(table, _RIVALS[name]):
        if title not in ends and title != name:
            yield from ((title, row) for row in _rows(table, name, title, lambda a, b: not math.isclose(a, b)))
    if name == "batch_size":
        for title in _titled(table, _PASSES):
            yield from ((title, row) for row in _rows(table, name, title, lambda _, passes: passes > 1))
    for title in ends if name == "lr" else ():
        alike = list(_rows(table, name, title, math.isclose))
        yield from ((title, row) for row in alike if len(alike) == len(table.places))


def _titled(table: Sheet, pattern: str) -> list[str]:
    return [title for title in table.columns if re.fullmatch(pattern, title, re.IGNORECASE)]


def _rows(table: Sheet, name: str, title: str, when: Callable[[float, float], bool]) -> Iterator[int]:
    """Yield the rows in which both columns hold numbers, for which ``when`` is true."""
    for row, pair in enumerate(zip(table.columns[name], table.columns[title], strict=True)):
        try:
            mine, other = map(cells.number, pair)
        except ValueError:
            continue
        if when(mine, other):
            yield row
