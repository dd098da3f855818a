"""Signals that end a sweep: treat all of them like Ctrl-C, and hold them back where they must not interrupt."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """While the block runs, treat SIGTERM and SIGHUP (job scheduler, closed terminal) like Ctrl-C, unless ignored."""
    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError):  # not in the main thread, where signals cannot be set
                before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP while the block runs, which takes about a second; a time limit that expires
    meanwhile takes effect after the block."""
    late: list[int] = []
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    except ValueError:  # not in the main thread, which is the only one that is interrupted
        yield
        return
    # The signals are not masked, because a mask holds for one thread only: another would take them and interrupt this
    # one.
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda number, frame: late.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in late:
            signal.raise_signal(number)
