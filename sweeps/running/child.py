"""Run code that may crash, hang or exhaust memory in a child process, so that the parent survives and can report it.

The child is a fresh Python (``subprocess``, so neither the main module nor Ray is imported again). It runs one function
after the other; every message that a function sends counts as a sign of life. Its standard output and standard error go
to a log file, whose last lines are reported if it dies.
"""

from __future__ import annotations

import faulthandler
import fcntl
import importlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cbs.errors import CbsError, ResultsError, reason

_TURN = 0.5  # Seconds between two checks of whether a silent child is still running
# Minimum number of seconds to wait for the first message of a child, which first has to import what it needs
_IMPORTS = 120.0
_LAST_WORDS = 3.0  # Seconds that a hanging child is given to write its stack
_TAIL, _MOST_LOG = 2**14, 2**20  # Bytes of the log that are read at the end, and bytes above which the log is emptied
# A line of a stack as `faulthandler` writes it; the innermost frame comes first
_FRAME = re.compile(r'\s*File "(.+)", line (\d+) in (\S+)')
_NOT_THEIRS = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[1] / "cbs"), __file__, "<")
_START = "import sys; sys.path[:] = {path!r}; from sweeps.running.child import main; main({fd}, {parent})"


class Died(CbsError):
    """The process of a trial died, or was killed because it gave no sign of life.

    Attributes:
        hung: whether it was killed because it was silent for too long.
        lines: the last lines it wrote.
    """

    def __init__(self, exit_code: int | None, silence: float | None, lines: list[str]) -> None:
        self.hung, self.lines = exit_code is None, lines
        if exit_code is None:
            how = f"did not respond for {silence:g} s"
        elif exit_code < 0:
            how = f"was killed by {signal.Signals(-exit_code).name}"
        else:
            how = f"exited with code {exit_code}"
        where = _place(lines)
        super().__init__(f"its process {how}" + (f": {where}" if where else ""))


class Failed(CbsError):
    """A function in a child process raised an unexpected error, one that the user of the command cannot correct."""


class Child:
    """A child process that runs functions of this installation. Close it, or use it as a context manager.

    Args:
        first: a module that the child imports before all others, while the parent does something else. If that fails,
            so will the functions called later, and the error is reported there.
    """

    def __init__(self, first: str | None = None) -> None:
        self._heard = False
        try:
            self._connection, other = Pipe()
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
            fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # otherwise emptying the log would leave a hole in it
            path = [*filter(os.path.isabs, sys.path)]  # without "", the working folder: its modules are added by name
            start = _START.format(path=path, fd=other.fileno(), parent=os.getpid())
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in a terminal is meant for the parent only
            )
        except OSError as error:
            where = tempfile.tempdir or "set TMPDIR to a folder that can be written"
            raise ResultsError(f"cannot start a process for trials: {reason(error)} ({where})") from None
        other.close()
        if first is not None:
            self._connection.send((first, None))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(
        self,
        function: str,
        *args: Any,
        heard: Callable[[Any], None] = lambda message: None,
        silence: float | None = None,
    ) -> Any:
        """Run a function in the child as ``function(channel, *args)`` and return its result.

        Args:
            function: ``package.module:name``, so that the parent need not import it; ``channel`` is a :class:`Channel`.
            args: plain values.
            heard: called with every message that the function sends.
            silence: seconds without a message after which the child is killed; ``None`` for no limit.

        Raises:
            CbsError: if the function raises one.
            Died: if the child dies or is killed.
            Failed: if the function raises any other error.
        """
        try:
            self._log.truncate(0)
            self._connection.send((function, args))
            silent = 0.0  # counted in turns: a clock also runs while this process is stopped or the machine sleeps
            while True:
                if self._connection.poll(_TURN):
                    kind, content = self._connection.recv()
                    silent, self._heard = 0.0, True
                    if kind == "said":
                        heard(content)
                        # a function that writes much must not fill the disk
                        if os.fstat(self._log.fileno()).st_size > _MOST_LOG:
                            self._log.truncate(0)
                    elif kind == "raised":
                        raise content
                    else:
                        return content
                elif self._process.poll() is not None:
                    break
                else:
                    silent += _TURN
                    if silence is not None and silent >= max(silence, 0 if self._heard else _IMPORTS):
                        self._last_words()
                        raise Died(None, silence, self.tail())
        except (EOFError, OSError):
            pass
        exit_code = self._process.wait()
        raise Died(exit_code, None, self.tail())

    def tail(self) -> list[str]:
        """Return the last lines that the child wrote."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - _TAIL))
        return [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]

    def kill(self) -> None:
        """Kill the child and all processes that it started; a call that waits for it raises :class:`Died`."""
        self._kill(signal.SIGKILL)

    def close(self) -> None:
        """Kill the child, wait for its end, and release its connection and log."""
        self.kill()
        self._process.wait()
        self._connection.close()
        self._log.close()

    def _last_words(self) -> None:
        """Make the child write the stack at which it hangs, even inside C code, and then kill it."""
        self._kill(signal.SIGABRT)
        try:
            self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._kill(signal.SIGKILL)
            self._process.wait()

    def _kill(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


class Channel:
    """The child's side of the connection, passed to every function as its first argument."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        os.register_at_fork(after_in_child=connection.close)  # messages of a fork made by foreign code are not wanted
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...] | None]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, message: Any) -> None:
        """Send a message to the parent process; it counts as a sign of life."""
        self._connection.send(("said", message))

    def serve(self) -> None:
        """Run the requested functions, one after the other."""
        while True:
            name, args = self._calls.get()
            module, _, function = name.partition(":")
            try:
                imported = importlib.import_module(module)
                if args is None:
                    continue
                answer = ("done", getattr(imported, function)(self, *args))
            except CbsError as error:
                plain = type(error).__init__ is CbsError.__init__
                answer = ("raised", (type(error) if plain else CbsError)(str(error)))
            except Exception as error:  # noqa: BLE001 - reported to the caller in the parent
                traceback.print_exc()
                answer = ("raised", Failed(f"{type(error).__name__}: {reason(error)}"))
            if args is not None:
                self._connection.send(answer)

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)  # the parent is gone
            self._calls.put(message)


def main(descriptor: int, parent: int) -> None:
    """Entry point of a child process of the process with the number ``parent``."""
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    if sys.platform == "linux":  # the system kills this process when its parent dies, even if it hangs inside C code
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the system was asked
        os._exit(1)
    Channel(Connection(descriptor)).serve()


def _place(lines: list[str]) -> str:
    """Describe in one line where a child was: the innermost frame of a stack dump that lies outside this package and
    its libraries, or else the last line that the child wrote."""
    start = max((number for number, line in enumerate(lines) if line.startswith("Current thread")), default=None)
    if start is None:
        return next((line.strip() for line in reversed(lines) if not line.startswith("Extension modules")), "")
    frames = [match.groups() for line in lines[start + 1 :] if (match := _FRAME.match(line))]
    theirs = [place for place in frames if not place[0].startswith(_NOT_THEIRS)]
    return "in {2}, {0}:{1}".format(*(theirs or frames)[0]) if frames else lines[start - 1].strip()
