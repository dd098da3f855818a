"""Run a program and, if the process that started it goes away, end the program with everything it has started.

``python guard.py SECONDS PROGRAM ARGUMENT...``: the program's output goes to standard error. When standard input ends,
because it was closed or because the process at the other end is gone for whatever reason, the program's process group
gets SIGTERM, and after the given seconds SIGKILL. Everything else it has started is killed too, such as workers of
``torchrun``, which are in sessions of their own. When the program has ended, its exit code is written to standard
output (negative for a signal).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

# Option of Linux's `prctl` that makes orphaned descendants children of this process instead of the first process
_SUBREAPER = 36

# Number of checks, and seconds between them, of whether killed processes are gone and left no others behind; a process
# that waits for a device may take some time to die.
_LOOKS, _BETWEEN = 100, 0.02


def main(seconds: float, command: list[str]) -> None:
    """Run the program until it ends or standard input ends."""
    if os.fork():  # detach from the parent, so that killing the children of a worker does not kill this process
        os._exit(0)
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True)
    except (OSError, ValueError) as error:
        print(f"cannot start {command[0]}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        tell(127)  # what a shell ends with where there is no such command
        return
    threading.Thread(target=end, args=(program, seconds), daemon=True).start()
    code = program.wait()
    kill(program)  # kill what the program has left behind
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
    """Kill the program's process group at once, and all other descendants of this process."""
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
    """Return the ids of the living descendants of this process, on systems that have ``/proc``."""
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
    """Report the exit code, if the parent still exists."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{code}\n".encode())


def send(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to everything in the program's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
