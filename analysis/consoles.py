"""What every command prints on. Text is printed as it stands: a ``:-1:`` in the name of a file is no picture."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_WIDE = 160

errors = Console(stderr=True, highlight=False, emoji=False)
"""For progress and notes; what a script reads goes to standard output."""


def console() -> Console:
    """Standard output; where it is not a terminal, wide enough for most tables to stay in one piece."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, emoji=False, width=wide)
