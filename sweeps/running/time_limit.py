"""A sweep in a queue with a time limit ends by itself, before the queue ends it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

_SOON = 1e-2
"""Seconds; a timer of 0 never ends."""


@contextlib.contextmanager
def time_limit(seconds: float | None, began: float) -> Iterator[None]:
    """So many seconds after the command began, while the block runs, the main thread is interrupted as by Ctrl-C.

    What runs then goes on from its last checkpoint when the command is given again. An interrupt that comes while a
    callback of the garbage collector runs, which Python drops, comes once more after it: that of the limit, and that
    of a job scheduler, which sends no second one before it kills.

    Args:
        seconds: above 0; ``None`` for no limit.
        began: when that was, by :func:`time.monotonic`: what is planned before the block counts, too.

    Raises:
        KeyboardInterrupt: in the block, once the time is over.
    """
    report = sys.unraisablehook

    def once_more(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _SOON)
        else:
            report(dropped)

    def interrupt(number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            if caller.f_code is once_more.__code__:  # Python would drop it here, too
                signal.setitimer(signal.ITIMER_REAL, _SOON)
                return
            caller = caller.f_back
        signal.default_int_handler(number, frame)

    before, sys.unraisablehook = signal.signal(signal.SIGALRM, interrupt), once_more
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(began + seconds - time.monotonic(), _SOON))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        signal.signal(signal.SIGALRM, before)
