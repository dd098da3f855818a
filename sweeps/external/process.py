"""A running external program: how it ends or is ended, and the last lines of its output."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeps.external import guard

OUTPUT = "output.log"  # File in the folder of a trial with standard output and standard error of the program

GRACE = 10.0  # Seconds from SIGTERM to SIGKILL, by hand

# Bytes at the end of the output in which its last lines are looked for, and how many of them a message holds
_TAIL, _LINES = 4096, 3

MOST_OUTPUT = 2**26  # Bytes of output that are kept unless it is the log, so that endless output does not fill the disk


class Process:
    """A program supervised by :mod:`sweeps.external.guard`.

    It runs in the folder ``path``, with ``environment`` added to that of this process, and has ``grace`` seconds to end
    when it is told to. ``most`` bytes of its output are kept. ``code`` is its exit code, negative for a signal, and
    ``None`` while it runs, or if its guard was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        path: str,
        environment: Mapping[str, str],
        grace: float = GRACE,
        most: float = MOST_OUTPUT,
    ) -> None:
        self.code: int | None = None
        self.running = True
        self._grace, self._heard, self._most = grace, 0, most
        # The file stays open, because the program may delete its folder; it is appended to even after it was truncated.
        self._output = open(folder / OUTPUT, "a+b", buffering=0)  # noqa: SIM115 - closed in :meth:`end`
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard.__file__), str(grace), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            cwd=path,
            env={**os.environ, **environment},
        )
        self._guard.wait()

    def wait(self, seconds: float) -> bool:
        """Wait for the program to end, at most this many seconds; return whether it has ended."""
        assert self._guard.stdout is not None
        deadline = time.monotonic() + seconds
        output = b""
        while self.running and select.select([self._guard.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self._guard.stdout.fileno(), 64)
            output += part
            if not part or part.endswith(b"\n"):
                self.running = False
                self.code = int(output) if output.strip() else None
        return not self.running

    def talked(self) -> bool:
        """Return whether the program has printed anything since the last call; output that is too long is truncated."""
        before, self._heard = self._heard, os.fstat(self._output.fileno()).st_size
        if self._heard > self._most:
            tail = self._tail()
            self._output.truncate(0)
            self._output.write(tail)
        return self._heard != before

    def end(self) -> None:
        """End the program if it is running, and everything it has started."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self.wait(2 * self._grace)
        self._guard.stdout.close()
        self._output.close()

    def how(self) -> str:
        """Say how the program ended, for a message."""
        if self.code is None:
            return "the command was ended from outside"
        if self.code < 0:
            names = {number.value: f" ({number.name})" for number in signal.Signals}
            return f"the command was ended by signal {-self.code}{names.get(-self.code, '')}"
        return f"the command ended with exit code {self.code}"

    def last_words(self) -> str:
        """Return the last lines of the output, joined to one line for a message."""
        text = self._tail().decode("utf-8", "replace")
        lines = "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text).split("\n")
        kept = [" ".join(line.split()) for line in lines if line.strip(" \t\r^~")][-_LINES:]  # no marks of a traceback
        return f"; its last output: {' | '.join(kept)}" if kept else "; it printed nothing"

    def _tail(self) -> bytes:
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - _TAIL))
        return self._output.read()
