"""What a screen holds of a result; what it leaves out, ``--wide`` shows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console

from analysis.estimate.diagnosis import Verdict
from analysis.formatting import plural
from analysis.present.table import Table, lines_of

# Lines that a terminal shows of an answer, the commands below it and the places of its files among them
LINES = 15

# Lines that a long table leaves to the sentences below it: one of advice, and what may be quoted
FOR_SENTENCES = 3


VERDICT = "verdict"  # The heading of the column that says what speaks against a row


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
            doubted += Counter(_verdicts(replace(shown, rows=rows[count:])))
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


def _verdicts(table: Table) -> Iterator[str]:
    """Yield the verdicts of rows that are not ``ok``."""
    for column in table.columns:
        if column.heading == VERDICT:
            yield from (text for row in table.rows if (text := column.cell(row)[0]) != Verdict.OK)


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
