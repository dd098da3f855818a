"""Signals that end a command: treat all of them like Ctrl-C, hold them back where they must not interrupt, and repeat
those that would be lost."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # Ctrl-C, job scheduler, closed terminal, Ctrl-\
NUMBERS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
# Seconds after an interrupt in which further ones are ignored, because they would cut short what the first one has
# begun; and most seconds for which one is put off.
GRACE_SECONDS = 15.0
_SOON = 1e-2  # Seconds until an interrupt that is put off is tried again; a timer of 0 seconds would never fire
_LOOK = 1e-3  # Seconds between two looks at what C code has made of signals

_last, _put_off = -math.inf, math.inf
# Imports that were going on when `signals_as_interrupt` began, as in a script that is itself imported
_imports_before = 0
_report: Callable[[Any], Any] = sys.unraisablehook


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, as the handler of a signal, unless that was done just now.

    During an import it is put off for a while: libraries that try what they can import would swallow it, or end the
    process.
    """
    global _last, _put_off
    now = time.monotonic()
    if now - _last < GRACE_SECONDS:
        return
    imports, dropping = _traced(frame)
    _put_off = min(_put_off, now)
    if dropping or (imports > _imports_before and now - _put_off < GRACE_SECONDS):
        signal.setitimer(signal.ITIMER_REAL, _SOON)
        return
    _last, _put_off = now, math.inf
    raise KeyboardInterrupt


def _again(number: int, frame: FrameType | None) -> None:
    """The handler of SIGALRM: time is over once, and whatever was raised before may have been dropped."""
    rearm()
    interrupt(number, frame)


def _once_more(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came during a callback of the garbage collector, where Python drops exceptions."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _SOON)
    else:
        _report(dropped)


def _traced(frame: FrameType | None) -> tuple[int, bool]:
    """How many frames of imports are around a frame, and whether a dropped interrupt is just being noted there."""
    imports, dropping = 0, False
    while frame is not None:
        imports += frame.f_code.co_filename.startswith("<frozen importlib")
        dropping |= frame.f_code is _once_more.__code__
        frame = frame.f_back
    return imports, dropping


def interrupted() -> bool:
    """Return whether a signal has interrupted what runs since :func:`signals_as_interrupt` began."""
    return _last > -math.inf


def rearm() -> None:
    """Let the next signal interrupt even if the last one did so just now."""
    global _last
    _last = -math.inf


@contextlib.contextmanager
def signals_as_interrupt(*, ignored_after: bool = False) -> Iterator[None]:
    """While the block runs, signals interrupt the main thread, unless they are ignored, as under ``nohup``.

    Does nothing in another thread.

    Args:
        ignored_after: whether they do nothing after the block, while the process ends.
    """
    global _imports_before, _report
    before: dict[int, Any] = {}
    for number, ours in {**dict.fromkeys(NUMBERS, interrupt), signal.SIGALRM: _again}.items():
        ignored = number != signal.SIGALRM and signal.getsignal(number) is signal.SIG_IGN
        if not ignored and signal.getsignal(number) is not ours:
            with contextlib.suppress(ValueError):
                before[number] = signal.signal(number, ours)
    if not before:
        yield
        return
    rearm()
    _imports_before, _ = _traced(sys._getframe())
    hook, sys.unraisablehook = sys.unraisablehook, _once_more
    _report = _report if hook is _once_more else hook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ignored_after else handler)


@contextlib.contextmanager
def time_limit(seconds: float | None, began: float) -> Iterator[None]:
    """While the block runs, interrupt the main thread like Ctrl-C a given time after the command began.

    Running trials continue from their last checkpoint when the command is given again.

    Args:
        seconds: the limit, above 0; ``None`` for no limit.
        began: start of the command on the clock of :func:`time.monotonic`, so that planning before the block counts
            too.

    Raises:
        KeyboardInterrupt: in the block, once the time is over.
    """
    with signals_as_interrupt():
        if seconds is not None:
            signal.signal(signal.SIGALRM, _again)  # refused in another thread, which no signal interrupts
            signal.setitimer(signal.ITIMER_REAL, max(began + seconds - time.monotonic(), _SOON))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """While the block runs, give back the signals that C code takes over, within milliseconds; in any thread.

    Ray's C code takes over SIGTERM as it starts, to print a stack and have the process killed by an alarm three seconds
    later; as it ends, it lets SIGTERM kill the process at once.
    """
    get, put = _core()
    pythons = next((get(each) for each in NUMBERS if callable(signal.getsignal(each))), None)
    over = threading.Event()

    def give_back() -> None:
        for number in (*NUMBERS, signal.SIGALRM):
            handler = signal.getsignal(number)
            ours = pythons if callable(handler) and not isinstance(handler, signal.Handlers) else handler
            if ours is not None and (get(number) or 0) != int(ours):
                put(number, int(ours))
                if number == signal.SIGALRM:
                    signal.alarm(0)  # of Ray's C code, at a signal that came meanwhile

    def watch() -> None:
        while not over.wait(_LOOK):
            give_back()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        give_back()


def _core() -> tuple[Callable[[int], int | None], Callable[[int, int], object]]:
    """Python's own functions that read and set what the system does at a signal."""
    import ctypes

    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype = put.restype = ctypes.c_void_p
    get.argtypes, put.argtypes = [ctypes.c_int], [ctypes.c_int, ctypes.c_void_p]
    return get, put


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
