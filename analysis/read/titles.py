"""What the title of a column says against its meaning what it is named for, and products of columns.

``--column 'batch_size=per_device_batch*accumulation*8'`` names a product of columns and numbers, ``steps=epochs*50000/
batch_size`` a ratio, ``tokens=2e9`` one value for all. A product is taken as it is: ``batch_size=micro*1`` says that it
is all of an update.
"""

import itertools
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from analysis.read.cells import empty, number, shown
from analysis.read.table import Sheet

_DIGITS = 12  # Significant digits of a product, so that 0.35 * 0.001 is the number that a person writes

_TIMES = re.compile(
    r".*[(\[] *(?:in *)?[x×*]? *(1e[+-]?\d+|10\^[+-]?\d+|thousands?|millions?|[kKM](?=[ )\]])|[MB](?= ?tokens)).*[)\]]"
    r"|.*_(k|M|thousands|millions)"
)
_POWERS = {"k": "1e3", "K": "1e3", "t": "1e3", "m": "1e6", "M": "1e6", "B": "1e9"}
_LOGARITHM = re.compile(r"(.*[_ (])?(log(2|10|(?=[_ (]))|ln)([_ (].*)?", re.IGNORECASE)
_GIVEN = re.compile(r"\*|/[\d.]+(e\d+)?$")  # What only products have
_EPOCHS = re.compile(r"(.*[/._ ])?epochs?([/._ ]?(id|num|index))?", re.IGNORECASE)
_COUNTED = {"step", "steps", "iteration", "iterations"}
_OF_CLOCKS = {"time", "walltime", "timestamp", "seconds", "secs", "minutes", "hours", "duration", "runtime", "date"}
_TRAINED_ON = {"examples", "samples", "sequences", "tokens"}
_OF_PART = re.compile(r"per[_ -]?(device|gpu|rank|replica|core|chip|node)|micro|local_|device_(train_)?batch", re.I)
_OF_ALL = re.compile("global|total|effective", re.IGNORECASE)
_PASSES = re.compile(
    r"(.*[./ ])?(\w*accum\w*|(n|num|number_of)_?(gpus?|devices?|nodes?|ranks?|replicas?)|gpus|devices|nodes|ranks"
    r"|replicas|world_?size|dp(_?(size|degree|world_size))?|data_parallel(_\w*)?)",
    re.IGNORECASE,
)


def factors(text: str, titles: Container[str]) -> list[tuple[str, int]]:
    """Return the columns and numbers of a product with their exponents, 1 or -1; none if the text is a title, or no
    product of those."""
    found: list[tuple[str, int]] = []
    for part in text.split("*"):
        over, _, below = part.rpartition("/")
        found += [(part, 1)] if not over or part in titles else [(over, 1), (below, -1)]
    known = text not in titles and all(name in titles or _is_number(name) for name, _ in found)
    return found if known else []


def is_column(title: str, titles: Container[str]) -> bool:
    """Whether a title is one of a table, or a product of them."""
    return title in titles or bool(factors(title, titles))


def _is_number(text: Any) -> bool:
    try:
        return abs(number(text)) < float("inf")
    except ValueError:
        return False


def product(parts: Iterable[tuple[str, int]], value: Callable[[str], Any]) -> float | None:
    """Return a product, given the value of every column; ``None`` if one is empty."""
    whole = 1.0
    for name, power in parts:
        each = float(name) if _is_number(name) else value(name)
        if empty(each):
            return None
        whole *= number(each) ** power
    return float(f"{whole:.{_DIGITS}g}")


def with_products(table: Sheet, titles: Iterable[str]) -> Sheet:
    """Return the table with a column for each of the ``titles`` that is a product."""
    made = {title: parts for title in titles if title not in table.columns and (parts := factors(title, table.columns))}
    columns: dict[str, list[float | None]] = {title: [] for title in made}
    for title, row in itertools.product(made, range(len(table.places))):
        try:
            columns[title].append(product(made[title], lambda name, at=row: table.columns[name][at]))  # type: ignore[misc]
        except ValueError as error:
            raise table.error(row, title, error) from None
    return Sheet(table.name, {**table.columns, **columns}, table.places) if made else table


def doubt(name: str, title: str, unit: str = "tokens") -> str:
    """Return what a title, which a person has given for our ``name``, says against it, and what to type; else nothing.
    Batch sizes count ``unit``, in the plural."""
    words = {*re.findall("[a-z]+", title.lower())}
    step, counts = name in ("step", "steps"), name in ("step", "steps", "examples", "tokens", "batch_size", "lr")
    if _GIVEN.search(title) or not counts:
        return ""
    said = f"--column {name}={title}: by its name it"
    if found := _TIMES.fullmatch(title):
        word = found[1] or found[2]
        factor = word.replace("10^", "1e") if word[0] == "1" else _POWERS[word[0]]
        return f"{said} is in units of {factor}: give --column '{name}={title}*{factor}', or '...*1' if it is not"
    if _LOGARITHM.fullmatch(title) and title.lower() != "log_step":  # at which something was logged
        return f"{said} is a logarithm: give the numbers themselves"
    if step and _EPOCHS.fullmatch(title):
        how = "--examples-per-epoch N" if name == "step" else f"--column '{name}={title}*N/batch_size', N examples"
        return (
            f"{said} counts epochs, which have fewer updates the larger the batch is: name a column of updates, or say "
            f"how long an epoch is with {how}"
        )
    if step and words & _TRAINED_ON and not words & _COUNTED:
        instead = f"examples={title} or tokens={title}" if name == "step" else f"'{name}={title}/batch_size'"
        return f"{said} counts what was trained on, not updates: give --column {instead}"
    if step and words & _OF_CLOCKS and not words & _COUNTED:
        return f"{said} is a time: name a column that counts updates, or give --column '{name}={title}*1' if it does"
    if name == "batch_size" and "tokens" in words and not unit.startswith("token"):
        return f"{said} is in tokens, not in {unit}: divide, --column 'batch_size={title}/N', or say so"
    return ""


def of_part(title: str, values: Mapping[str, Sequence[Any]]) -> str:
    """Return what says that a batch size is that of one device or pass, by its title or by the ``values`` of all
    columns, or settings, by title; and what to type. Nothing if nothing does."""
    part = bool(_OF_PART.search(title))
    # among which a batch is split
    passes = [
        each
        for each, column in values.items()
        if _PASSES.fullmatch(each) and any(_is_number(cell) and number(cell) > 1 for cell in column)
    ]
    if _GIVEN.search(title) or _OF_ALL.search(title) or not (part or passes):
        return ""
    why = "by its name" if part else f"as {shown(passes[0])} says"
    return (
        f"{shown(title)} may be the batch size of one pass or device, {why}: for that of an update give --column "
        f"'batch_size={'*'.join([title, *(passes or ['N'])])}', or '...={title}*1' if it is that"
    )


def parts_of(title: str) -> list[str]:
    """Return what may be columns of a product, of whatever table: ``loss/0`` is a title or a ratio."""
    ratios = ((part, *part.rpartition("/")) for part in title.split("*"))
    names = itertools.chain.from_iterable((part, over if _is_number(below) else "") for part, over, _, below in ratios)
    return [name for name in names if name and not _is_number(name)]


def whole_batch(titles: Collection[str]) -> str:
    """Return the product that is the batch size by the titles of its factors; nothing if none is of a part."""
    parts = [title for title in titles if _OF_PART.search(title) and "batch" in title.lower()]
    return "*".join([parts[0], *filter(_PASSES.fullmatch, titles)]) if len(parts) == 1 else ""
