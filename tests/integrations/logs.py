"""What a library's logger is given."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lightnings_log() -> Iterator[list[str]]:
    """Lines that Lightning logs on rank zero, whose loggers may not propagate."""
    from lightning_utilities.core import rank_zero

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    rank_zero.log.addHandler(handler)
    try:
        yield lines
    finally:
        rank_zero.log.removeHandler(handler)
