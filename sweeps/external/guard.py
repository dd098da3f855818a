"""Runs a program and outlives whoever started it by just long enough to end it, with all it has started.

``python guard.py SECONDS PROGRAM ARGUMENT...``: what it prints goes to standard error. When standard input ends,
because it was closed or because the process at the other end is gone however it went, the program's group of processes
gets SIGTERM, and after so many seconds SIGKILL, as does everything else it has started: workers of ``torchrun`` are in
sessions of their own. Once the program has ended, its exit code stands on standard output (that of a signal is
negative).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

_SUBREAPER = 36
"""Option of Linux's ``prctl``: processes whose parent is gone become children of this one, and not of the first."""

_LOOKS, _BETWEEN = 100, 0.02
"""How often, and after how many seconds, it is looked whether processes that were killed are gone and left no others:
one that waits for a device may take its time."""


def main(seconds: float, command: list[str]) -> None:
    """Run the program to its end, or to that of standard input."""
    if os.fork():  # a child of nobody: what ends the children of a worker must not end this
        os._exit(0)
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True)
    except (OSError, ValueError) as error:
        print(f"cannot start {command[0]}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        tell(127)
        return
    threading.Thread(target=end, args=(program, seconds), daemon=True).start()
    code = program.wait()
    kill(program)  # what it has left behind
    tell(code)


def end(program: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until standard input ends, then end the program."""
    while os.read(0, 4096):
        pass
    send(program, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(seconds)
    kill(program)


def kill(program: subprocess.Popen[bytes]) -> None:
    """End the program's group at once, and whatever else this process has descendants of."""
    send(program, signal.SIGKILL)
    for _ in range(_LOOKS):
        left = descendants()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_BETWEEN)


def descendants() -> set[int]:
    """Processes below this one that live, on systems that have ``/proc``."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in b"ZX":
                parents[int(name)] = int(parent)
    pids: set[int] = set()
    more = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in more} - pids:
        pids |= more
    return pids


def tell(code: int) -> None:
    """Say how it ended, if anybody is there to hear it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{code}\n".encode())


def send(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to everything in the program's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
