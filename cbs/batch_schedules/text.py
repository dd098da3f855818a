"""Tables of stages as a person types them: ``0:768 250B:1536 500B:3072``, as in Megatron-LM."""

from __future__ import annotations

import re
from decimal import Decimal

from cbs.errors import ConfigError

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_ENTRY = re.compile(r"(\d+\.?\d*|\.\d+)([KMBT]?):(\d+)([KM]?)", re.ASCII | re.IGNORECASE)


def parse_table(text: str) -> list[tuple[int, int]]:
    """Where each stage begins and its batch size, separated by blanks or commas.

    Raises:
        ConfigError: naming the entry that is not ``start:size``, does not come after the one before it, or is not the
            first at 0.
    """
    found: list[tuple[int, int]] = []
    for entry in text.replace(",", " ").split():
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} is not start:size, as in 0:768 250B:1536")
        start, unit, size, thousands = match.groups()
        begin = Decimal(start) * _SUFFIXES[unit.upper()]
        if begin != int(begin):
            raise ConfigError(f"{entry!r} in the table of stages {text!r} does not begin at a whole number")
        if len(begin.as_tuple().digits) > 18:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} begins beyond every budget")
        batch_size = int(size) * _SUFFIXES[thousands.upper()] if len(size) < 13 else 0
        if batch_size < 1:
            raise ConfigError(f"{entry!r} in the table of stages {text!r}: a batch holds 1 example or more, up to 1e12")
        if found and int(begin) <= found[-1][0]:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} does not begin after the stage before it")
        found.append((int(begin), batch_size))
    if not found or found[0][0] != 0:
        raise ConfigError(f"the table of stages {text!r} must begin at 0, as in 0:768 250B:1536")
    return found
