"""Signals that end a command: treat all of them like Ctrl-C, and hold them back where they must not interrupt."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # Ctrl-C, job scheduler, closed terminal, Ctrl-\
NUMBERS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
GRACE_SECONDS = 15.0
"""Seconds after an interrupt in which further ones are ignored, because they would cut short what the first one has
begun."""

_last = -math.inf


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, as the handler of a signal, unless that was done just now."""
    global _last
    if time.monotonic() - _last >= GRACE_SECONDS:
        _last = time.monotonic()
        raise KeyboardInterrupt


def interrupted() -> bool:
    """Return whether a signal has interrupted what runs since :func:`install`."""
    return _last > -math.inf


def rearm() -> None:
    """Let the next signal interrupt even if the last one did so just now."""
    global _last
    _last = -math.inf


def install() -> dict[int, Any]:
    """Make signals interrupt the main thread, unless they are ignored, as under ``nohup``; return what they did before.
    Does nothing in another thread."""
    global _last
    before: dict[int, Any] = {}
    for number in NUMBERS:
        if signal.getsignal(number) not in (signal.SIG_IGN, interrupt):
            with contextlib.suppress(ValueError):
                before[number] = signal.signal(number, interrupt)
    if before:
        _last = -math.inf
    return before


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """While the block runs, :func:`install` holds."""
    before = install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore these signals while the block runs, which takes about a second; a time limit that expires meanwhile takes
    effect after the block."""
    late: list[int] = []
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in NUMBERS}
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
