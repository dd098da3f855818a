"""What a screen holds of a result; what it leaves out, ``--wide`` shows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console

from analysis.formatting import plural
from analysis.present.table import Table, lines_of

# Lines that a terminal shows of an answer, the commands below it and the places of its files among them
LINES = 15

# Lines that a long table leaves to the sentences below it: one of advice, and what may be quoted
FOR_SENTENCES = 3


def on_screen(
    parts: Sequence[Table | str], then: Sequence[str], console: Console, lines: int = LINES
) -> tuple[list[Table | str], list[str]]:
    """Return the parts and commands that ``lines`` hold, in their order, and after them how much is left out.

    Of a table the first rows are kept, of sentences those that fit whole, of commands the first: they come in the order
    of what an answer lacks most.
    """
    if _height(parts, console) + len(then) <= lines:
        return list(parts), list(then)
    room = lines - 1 - len(then[:1])  # the line that says what is left out
    left, kept = Counter({"command": len(then[1:])}), list[Table | str]()
    for index, part in enumerate(parts):
        rows, sentences = ([], [part]) if isinstance(part, str) else (part.rows, part.lines)
        shown = None if isinstance(part, str) else replace(part, lines=())
        if shown is not None and rows:
            below = [*sentences, *(other for other in parts[index + 1 :] if isinstance(other, str))]
            free = room - min(FOR_SENTENCES, _height(below, console)) - _gap(kept)
            count = _rows_within(shown, free, console, least=0 if kept else 1)
            left["row"] += len(rows) - count
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
    missing = ", ".join(plural(count, name) for name, count in left.items() if count)
    return [*kept, f"--wide shows the rest: {missing}"], list(then[:1])


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
