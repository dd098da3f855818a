"""``cbs status --watch``: show the state of a folder of results repeatedly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sweeps.launching.ledger import Ledger, ledgers

SECONDS = 2.0
"""Seconds between two updates on a terminal."""

LINE_SECONDS = 15.0
"""Seconds between two updates if the output is not a terminal."""


def watch(path: str | os.PathLike[str], console: Console, *, pause: Callable[[float], None] = time.sleep) -> None:
    """Show the sweeps at a path until none of them is running: updated in place on a terminal, else printed again.

    Args:
        path: a sweep, or a folder of sweeps.
        console: console to print on.
        pause: waits for a number of seconds.

    Raises:
        ResultsError: if there is no sweep.
    """
    found = ledgers(path)
    if not console.is_terminal:
        console.print(_text(found), soft_wrap=True)
        while _running(found):
            pause(LINE_SECONDS)
            found = ledgers(path)
            console.print(_text(found), soft_wrap=True)
        return
    with Live(_text(found), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while _running(found):
            pause(SECONDS)
            found = ledgers(path)
            live.update(_text(found), refresh=True)


def _running(found: list[Ledger]) -> bool:
    return any(entry.state == "running" for entry in found)


def _text(found: list[Ledger]) -> Text:
    return Text("\n".join(line for entry in found for line in entry.lines()), no_wrap=True, overflow="ellipsis")
