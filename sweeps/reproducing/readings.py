"""Numbers of ours out of the JSON of analyses, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.arrays import Quantity
from cbs.errors import DataError
from sweeps.papers.base import AnswerPath, Step

_VALUES = ("value", "critical_batch_size", "ratio", "lr")
"""Names of what ``interval`` beside them is of; beside any other name it is of something else."""


class NoSuchNumber(DataError):
    """An analysis does not have what a reading asks for; the message says what."""


def read(contents: Mapping[str, Any], reading: AnswerPath) -> list[Quantity]:
    """The numbers of a reading, whatever speaks against them: one, or as many as the list has that its path goes
    through.

    Args:
        contents: of analyses by name.
        reading: which number.

    Raises:
        NoSuchNumber: if the analysis does not have it.
    """
    content = contents[reading.analysis]
    *rest, last = reading.path
    found = [_quantity(holder, last, reading) for holder in _at(content, tuple(rest))]
    if reading.over is None:
        return found
    below = read(contents, reading.over)
    if len(below) not in (1, len(found)):
        raise NoSuchNumber(f"{len(found)} numbers over {len(below)}")
    return [each.over(other) for each, other in zip(found, below * (len(found) // len(below)), strict=True)]


def doubts(contents: Mapping[str, Any], reading: AnswerPath) -> list[str]:
    """Verdicts that have to be ok for a reading to count and are not, and flags that are set; the same of what it is
    divided by.

    Raises:
        NoSuchNumber: if the analysis does not have one of them.
    """
    found = [
        f"{reading.analysis}: {in_short(path)} is {verdict!r}"
        for path in reading.ok
        for verdict in _at(contents[reading.analysis], path)
        if verdict not in ("ok", False)
    ]
    return found + (doubts(contents, reading.over) if reading.over else [])


def _quantity(holder: Any, last: Step, reading: AnswerPath) -> Quantity:
    (value,) = _at(holder, (last,), within=reading.path)
    beside: Sequence[Any] = (None, None)
    if isinstance(value, Mapping):
        beside = value.get("interval") or beside
        value = value.get("value")
    elif isinstance(holder, Mapping):
        own = holder.get("interval") if last in _VALUES else None
        beside = holder.get(f"{last}_interval") or own or beside
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoSuchNumber(f"{reading.analysis}: {in_short(reading.path)} is {value!r}, not a number")
    if reading.exact:
        beside = (value, value)
    return Quantity(float(value), (beside[0], beside[1]))


def _at(content: Any, path: Sequence[Step], within: Sequence[Step] = ()) -> list[Any]:
    """What a path leads to, one or several."""
    here = [content]
    for step in path:
        here = [each for part in here for each in _steps(part, step, within or path)]
    return here


def _steps(part: Any, step: Step, path: Sequence[Step]) -> Iterator[Any]:
    key = isinstance(step, str) and isinstance(part, Mapping) and step in part
    if key or (isinstance(step, int) and isinstance(part, Sequence) and -len(part) <= step < len(part)):
        yield part[step]  # type: ignore[index]
    elif isinstance(step, Mapping) and isinstance(part, Sequence) and not isinstance(part, str):
        fitting = [entry for entry in part if all(entry.get(key) == value for key, value in step.items())]
        if not fitting or (step and len(fitting) > 1):
            raise NoSuchNumber(f"{len(fitting)} entries fit {in_words((step,))} of {in_words(path)}")
        yield from fitting
    else:
        raise NoSuchNumber(f"there is no {in_words(path)}")


def in_short(path: Sequence[Step]) -> str:
    """``verdict of merit``: the last name of a path, and the names of the entries that it goes through."""
    *_, last = (step for step in path if isinstance(step, str))
    names = [value for step in path if isinstance(step, Mapping) for value in step.values() if isinstance(value, str)]
    return last + (f" of {', '.join(names)}" if names else "")


def in_words(path: Sequence[Step]) -> str:
    """``fits[optimizer=merit].critical_batch_size``."""
    text = ""
    for step in path:
        if isinstance(step, str):
            text += f".{step}"
        elif isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f"[{', '.join(f'{key}={value}' for key, value in step.items()) or '*'}]"
    return text.removeprefix(".")
