"""End a sweep in a job queue with a time limit cleanly, before the queue kills it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from cbs import interrupts

_SOON = 1e-2
"""Seconds until a timer fires at once; a timer of 0 seconds would never fire."""


@contextlib.contextmanager
def time_limit(seconds: float | None, began: float) -> Iterator[None]:
    """While the block runs, interrupt the main thread like Ctrl-C a given time after the command began.

    Running trials continue from their last checkpoint when the command is given again. Python drops an interrupt that
    arrives during a callback of the garbage collector; such an interrupt is repeated afterwards, both that of the limit
    and that of a job scheduler, which sends no second one before it kills.

    Args:
        seconds: the limit, above 0; ``None`` for no limit.
        began: start of the command on the clock of :func:`time.monotonic`, so that planning before the block counts
            too.

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
            if caller.f_code is once_more.__code__:  # Python would drop the interrupt here as well
                signal.setitimer(signal.ITIMER_REAL, _SOON)
                return
            caller = caller.f_back
        interrupts.rearm()  # time is over once, and whatever was raised before may have been dropped
        interrupts.interrupt(number, frame)

    before, sys.unraisablehook = signal.signal(signal.SIGALRM, interrupt), once_more
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(began + seconds - time.monotonic(), _SOON))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        signal.signal(signal.SIGALRM, before)
