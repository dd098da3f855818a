"""Code that may crash, hang or fill the memory runs in a process of its own, and who asked lives to tell what happened.

The child is a Python of its own (``subprocess``, so neither the module that was started nor Ray is imported again). It
runs one function after the other; what a function says on the way is a sign of life. Its standard output and error go
to a file, whose last lines belong to the message when it dies.
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

_TURN = 0.5
"""Seconds between two looks at whether a silent child is still there."""
_IMPORTS = 120.0
"""Least seconds until the first word of a child, which imports what it needs."""
_LAST_WORDS = 3.0
"""Seconds a hanging child has to write down where it hangs."""
_TAIL, _MOST_LOG = 2**14, 2**20
"""Bytes of the log that are read at the end, and that it may have."""
_FRAME = re.compile(r'\s*File "(.+)", line (\d+) in (\S+)')
"""A line of a stack as :mod:`faulthandler` writes it, innermost first."""
_NOT_THEIRS = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[1] / "cbs"), __file__, "<")
_START = "import sys; sys.path[:] = {path!r}; from sweeps.running.child import main; main({fd})"


class Died(CbsError):
    """The process of a trial died, or was killed because it gave no sign of life.

    Attributes:
        hung: whether it was silent for too long.
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
    """A function in a child raised an error that its user cannot correct."""


class Child:
    """A process that runs functions of this installation. Close it, or use it as a context.

    Args:
        first: a function without arguments that runs there before all that is asked for, ``package.module:name``: it
            imports what takes long, while this process does something else. If it fails, so will what is asked for,
            which is where it is told.
    """

    def __init__(self, first: str | None = None) -> None:
        self._heard = False
        try:
            self._connection, other = Pipe()
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
            fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # or what is forgotten would stay as a hole
            path = [*filter(os.path.isabs, sys.path)]  # not "", the working folder, whose modules are asked for by name
            start = _START.format(path=path, fd=other.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in a terminal is for the one who asked
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
        """Run a function there as ``function(channel, *args)`` and return what it returns.

        Args:
            function: ``package.module:name``, so that this process need not import it; ``channel`` is a
                :class:`Channel`.
            args: plain values.
            heard: called with everything the function says.
            silence: seconds without a word after which the process is killed; ``None`` for ever.

        Raises:
            CbsError: as the function does.
            Died: if the process dies or is killed.
            Failed: if the function raises anything else.
        """
        try:
            self._log.truncate(0)
            self._connection.send((function, args))
            silent = 0.0  # in turns, since a clock goes on while this process is stopped or the machine sleeps
            while True:
                if self._connection.poll(_TURN):
                    kind, content = self._connection.recv()
                    silent, self._heard = 0.0, True
                    if kind == "said":
                        heard(content)
                        self._forget()
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
        """The last lines that the child wrote."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - _TAIL))
        return [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]

    def _forget(self) -> None:
        """Empty a long log, so that a talkative function does not fill the disk overnight."""
        if os.fstat(self._log.fileno()).st_size > _MOST_LOG:
            self._log.truncate(0)

    def kill(self) -> None:
        """End the process and all that it started; a call that waits for it raises :class:`Died`."""
        self._kill(signal.SIGKILL)

    def close(self) -> None:
        """:meth:`kill`, and let go of what it leaves."""
        self.kill()
        self._process.wait()
        self._connection.close()
        self._log.close()

    def _last_words(self) -> None:
        """Let the child write down where it hangs, in C if need be; then it is killed."""
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
    """The child's side: what a function gets as its first argument."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        os.register_at_fork(after_in_child=connection.close)  # a copy that code of others makes is not heard
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
                run = getattr(importlib.import_module(module), function)
                if args is None:
                    run()
                    continue
                answer = ("done", run(self, *args))
            except CbsError as error:
                plain = type(error).__init__ is CbsError.__init__
                answer = ("raised", (type(error) if plain else CbsError)(str(error)))
            except Exception as error:  # noqa: BLE001 - told to the one who asked
                traceback.print_exc()
                answer = ("raised", Failed(f"{type(error).__name__}: {reason(error)}"))
            if args is not None:
                self._connection.send(answer)

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)  # nobody is there any more
            self._calls.put(message)


def main(descriptor: int) -> None:
    """Entry point of a child process."""
    os.set_inheritable(descriptor, False)
    faulthandler.enable()
    _die_with_parent()
    Channel(Connection(descriptor)).serve()


def _die_with_parent() -> None:
    """Where the system can do so: even a process that hangs in C does not outlive the one who asked."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _place(lines: list[str]) -> str:
    """Where a child was, in a line: the innermost place outside this package and its libraries that a dump of the
    stack names, else the last line it wrote."""
    start = max((number for number, line in enumerate(lines) if line.startswith("Current thread")), default=None)
    if start is None:
        return next((line.strip() for line in reversed(lines) if not line.startswith("Extension modules")), "")
    frames = [match.groups() for line in lines[start + 1 :] if (match := _FRAME.match(line))]
    theirs = [place for place in frames if not place[0].startswith(_NOT_THEIRS)]
    return "in {2}, {0}:{1}".format(*(theirs or frames)[0]) if frames else lines[start - 1].strip()
