"""Cells of tables and values of JSON files as numbers and names, strictly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.arrays import Array
from cbs.record import TrialStatus

LARGEST = 2**53
"""Whole numbers beyond this are not exact in a float."""

_CHARACTERS = set("0123456789+-.eE nainftyNAINFTY")
"""Of a number; float() takes more, such as underscores."""

_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+,:=()@ -]{0,99}")


def empty(cell: Any) -> bool:
    """Whether a cell says nothing: null, or no text."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def number(cell: Any) -> float:
    """A number, not a finite one in general; text such as ``1e-3``, ``nan`` or ``inf`` is one.

    Raises:
        ValueError: saying what it is instead.
    """
    if isinstance(cell, str):
        if not _NUMBER.fullmatch(cell.strip()):
            raise ValueError(f"{_short(cell)} is not a number")
        return float(cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        raise ValueError(f"{_short(cell)} is not a number")
    try:
        return float(cell)
    except OverflowError:
        raise ValueError("a whole number that long is not a measurement") from None


def plain_numbers(cells: Sequence[Any]) -> Array | None:
    """:func:`number` of many texts at once; ``None`` where one is not a number, or no text."""
    if not all(isinstance(cell, str) for cell in cells) or not set("".join(cells)) <= _CHARACTERS:
        return None
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def whole(cell: Any, minimum: int) -> int:
    """A whole number of at least ``minimum``; 64.0 is one.

    Raises:
        ValueError: saying what it is instead.
    """
    value = number(cell)
    if not (minimum <= value <= LARGEST and value == int(value)):
        raise ValueError(f"{_short(cell)} is not a whole number of at least {minimum}")
    return int(value)


def fact(name: str, cell: Any) -> Any:
    """The value of one of :data:`analysis.read.importers.base.FACTS`, checked.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if name in ("batch_size", "parameters"):
        return whole(cell, 1)
    if name == "seed":
        return whole(cell, 0)
    if name == "lr":
        value = number(cell)
        if not 0 < value < float("inf"):
            raise ValueError(f"{_short(cell)} is not a learning rate above 0")
        return value
    if not isinstance(cell, str):
        raise ValueError(f"{_short(cell)} is not a name")
    text = cell.strip()
    if name == "status":
        if text.upper() not in TrialStatus.__members__:
            raise ValueError(f"{_short(cell)} is none of {', '.join(TrialStatus)}")
        return TrialStatus(text.upper())
    if name == "optimizer" and not _NAME.fullmatch(text):
        raise ValueError(f"{_short(cell)} cannot be part of a folder's name; use letters, digits and _.+,:=()@-")
    if not text or not text.isprintable() or len(text) > 200:
        raise ValueError(f"{_short(cell)} is not a name")
    return text


def _short(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."
