"""Signals that end a sweep: which there are, and where they have to wait."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """A job scheduler's stop and a closed terminal are like Ctrl-C while the block runs, unless they were ignored."""
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
    """Ctrl-C, once more, does not cut the block short, which takes a second; a time limit that is over does so after
    it."""
    late: list[int] = []
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    except ValueError:  # not in the main thread, which alone is interrupted
        yield
        return
    # not masked, which holds for one thread only: another one would take it and interrupt this one
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda number, frame: late.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in late:
            signal.raise_signal(number)
