"""What every command prints on. Text is printed as it stands: a ``:-1:`` in the name of a file is no picture."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

_WIDE = 160

_PAUSE = 10.0  # seconds between two lines of progress if there is no terminal

errors = Console(stderr=True, highlight=False, emoji=False)
"""For progress and notes; what a script reads goes to standard output."""


def console() -> Console:
    """Standard output; where it is not a terminal, wide enough for most tables to stay in one piece."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, emoji=False, width=wide)


@contextmanager
def progress(words: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what a command of minutes is at: a line that changes on a terminal, lines elsewhere."""
    with errors.status(words) as status:
        shown = time.monotonic()
        if not errors.is_terminal:
            errors.print(words)

        def update(words: str) -> None:
            nonlocal shown
            status.update(words)
            if not errors.is_terminal and time.monotonic() - shown > _PAUSE:
                shown = time.monotonic()
                errors.print(words)

        yield update
