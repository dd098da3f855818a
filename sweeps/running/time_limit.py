"""A sweep in a queue with a time limit ends by itself, before the queue ends it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

_AT_ONCE = 1e-3
"""Seconds; a timer of 0 never ends."""


@contextlib.contextmanager
def time_limit(seconds: float | None, began: float) -> Iterator[None]:
    """So many seconds after the command began, while the block runs, the main thread is interrupted as by Ctrl-C.

    What runs then goes on from its last checkpoint when the command is given again.

    Args:
        seconds: above 0; ``None`` for no limit.
        began: when that was, by :func:`time.monotonic`: what is planned before the block counts, too.

    Raises:
        KeyboardInterrupt: in the block, once the time is over.
    """
    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    left = began + seconds - time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(left, _AT_ONCE))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
