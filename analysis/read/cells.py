"""Parse a cell of a table, or a value of a JSON file, as a number or a boolean, strictly: nothing is guessed.

Every function raises a ``ValueError`` that says what the cell is and what to write instead; the reader of the table
adds where the cell stands, see :meth:`analysis.read.table.Sheet.cell`.
"""

import math
import re
from numbers import Real
from typing import Any

# Whole numbers beyond this are not exact in a float
LARGEST = 2**53

_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_THOUSANDS = re.compile(r"([1-9]\d{0,2})\.000", re.ASCII)
_SUFFIXED = re.compile(r"[\d.]+\s*[kmgbt]i?b?", re.IGNORECASE)
_WORDS = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}


def empty(cell: Any) -> bool:
    """Return whether a cell is empty: null, or a text of white space."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def number(cell: Any) -> float:
    """Parse a number, which may not be finite; texts such as ``1e-3``, ``nan`` or ``inf`` are accepted."""
    text = cell.strip() if isinstance(cell, str) else ""
    if _NUMBER.fullmatch(text):
        return float(text)
    if isinstance(cell, bool) or not isinstance(cell, Real):
        if empty(cell):
            raise ValueError("it is empty; write a plain number")
        hint = "write a plain number"
        if _SUFFIXED.fullmatch(text):
            hint = "write the number in full, without a suffix"
        elif text and not re.search(r"\d", text):
            hint = "write a plain number, or nan where the run diverged"
        elif "," in text:
            hint = "write it without thousands separators, and with a decimal point"
        raise ValueError(f"{shown(cell)} is not a number; {hint}")
    try:
        return float(cell)
    except OverflowError:
        raise ValueError(f"{shown(cell)} is not a number; one that long is not a measurement") from None


def positive(cell: Any, hint: str = "correct or remove the row") -> float:
    """Parse a finite number above 0."""
    value = number(cell)
    if not math.isfinite(value):
        raise ValueError(f"{shown(cell)} is not a finite number; {hint}")
    if value <= 0:
        raise ValueError(f"{shown(cell)} must be above 0; {hint}")
    return value


def whole(cell: Any, minimum: int = 1) -> int:
    """Parse a whole number of at least ``minimum``; 64.0 counts as whole, 64.000 may be 64 or 64 thousand."""
    if isinstance(cell, str) and (parts := _THOUSANDS.fullmatch(cell.strip())):
        raise ValueError(f"{shown(cell)} may be {parts[1]} or {parts[1]}000; write it without a point")
    value = number(cell)
    if not (minimum <= value <= LARGEST and value == int(value)):
        raise ValueError(f"{shown(cell)} is not a whole number of at least {minimum}; correct it")
    return int(value)


def flag(cell: Any) -> bool:
    """Parse yes or no; an empty cell means no."""
    meaning = False if empty(cell) else _WORDS.get(str(cell).strip().lower())
    if meaning is None:
        raise ValueError(f"{shown(cell)} is neither; write true or false")
    return meaning


def shown(cell: Any, *, quote: bool = True) -> str:
    """Format a cell for one line of a message."""
    text = str(cell)
    cut = text if len(text) <= 40 else f"{text[:37]}..."
    return repr(cut) if (quote and isinstance(cell, str)) or not cut.isprintable() else cut
