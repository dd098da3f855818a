"""Runs a program and outlives whoever started it by just long enough to end it, with all it has started.

``python guard.py SECONDS PROGRAM ARGUMENT...``: what it prints goes to standard error. When standard input ends,
because it was closed or because the process at the other end is gone however it went, the program's group of processes
gets SIGTERM, and after so many seconds SIGKILL. Once the program has ended, its exit code stands on standard output
(that of a signal is negative).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(seconds: float, command: list[str]) -> None:
    """Run the program to its end, or to that of standard input."""
    if os.fork():  # a child of nobody: what ends the children of a worker must not end this
        os._exit(0)
    os.setsid()
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True)
    except (OSError, ValueError) as error:
        print(f"cannot start {command[0]}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        tell(127)
        return
    threading.Thread(target=end, args=(program, seconds), daemon=True).start()
    code = program.wait()
    send(program, signal.SIGKILL)  # what it has left behind
    tell(code)


def end(program: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until standard input ends, then end the program."""
    while os.read(0, 4096):
        pass
    send(program, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(seconds)
    send(program, signal.SIGKILL)


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
