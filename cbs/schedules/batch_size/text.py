"""Parsing of tables of stages in the form of Megatron-LM: ``0:768 250B:1536 500B:3072``."""

from __future__ import annotations

import re
from decimal import Decimal

from cbs.errors import ConfigError

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = r"((?:\d[\d_]*\.?\d*|\.\d+)(?:e\d\d?)?)([KMBT]?)"
_AMOUNT = re.compile(_NUMBER, re.ASCII | re.IGNORECASE)
_ENTRY = re.compile(_NUMBER + r":(\d+)([KM]?)", re.ASCII | re.IGNORECASE)


def parse_table(text: str) -> list[tuple[int, int]]:
    """Parse a table into the start and the batch size of each stage; entries are separated by spaces or commas.

    Raises:
        ConfigError: names the entry that is not ``start:size`` or does not begin after the one before it; also if the
            first does not begin at 0.
    """
    table: list[tuple[int, int]] = []
    for entry in text.replace(",", " ").split():
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} is not start:size, as in 0:768 250B:1536")
        start, unit, size, thousands = match.groups()
        begin = _amount(start, unit, entry)
        batch_size = int(size) * _SUFFIXES[thousands.upper()] if len(size) < 13 else 0
        if batch_size < 1:
            raise ConfigError(f"{entry!r} in the table of stages {text!r}: the batch size must be between 1 and 1e12")
        if table and begin <= table[-1][0]:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} does not begin after the stage before it")
        table.append((begin, batch_size))
    if not table or table[0][0] != 0:
        raise ConfigError(f"the table of stages {text!r} must begin at 0, as in 0:768 250B:1536")
    return table


def parse_amount(text: str) -> int:
    """Parse a number of examples or tokens: ``608B``, ``1.5M``, ``4096``, ``250e9``, ``250_000_000``.

    Raises:
        ConfigError: if it is not a number above 0.
    """
    match = _AMOUNT.fullmatch(text.strip())
    amount = _amount(match[1], match[2], text) if match else 0
    if amount < 1:
        raise ConfigError(f"{text!r} is not a number of examples or tokens above 0, such as 4096, 1.5M or 608B")
    return amount


def _amount(digits: str, unit: str, text: str) -> int:
    amount = Decimal(digits) * _SUFFIXES[unit.upper()]
    if len(digits) > 18 or amount > 10**18:
        raise ConfigError(f"{text!r} is too large; the limit is 1e18")
    if amount != int(amount):
        raise ConfigError(f"{text!r} is not a whole number of examples or tokens")
    return int(amount)
