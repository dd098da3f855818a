"""A sweep in a queue with a time limit ends by itself, before the queue ends it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """After so many seconds in the block, the main thread is interrupted as by Ctrl-C.

    What runs then goes on from its last checkpoint when the command is given again.

    Args:
        seconds: above 0; ``None`` for no limit.

    Raises:
        KeyboardInterrupt: in the block, once the time is over.
    """
    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
