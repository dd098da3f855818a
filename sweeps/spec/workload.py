"""The workload of a sweep, built once in a process however many parts of it ask."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.trial.config import COMMAND, Choice
from cbs.workloads import Workload, build_workload


def built(choice: Choice) -> Workload:
    """:func:`cbs.workloads.build_workload`, or what it returned the last time it was asked for the same.

    Raises:
        ConfigError: if a program trains, whose model is not known here.
    """
    if choice.name == COMMAND:
        raise ConfigError("a program trained these trials (--command), and its model and data are not known here")
    return _built(choice.name, json.dumps(choice.options, sort_keys=True))


@contextlib.contextmanager
def calling_theirs() -> Iterator[None]:
    """The block runs other people's code: what it prints goes to standard error, the working folder and Ctrl-C
    are afterwards what they were, and it does not end the process.

    Raises:
        ConfigError: if it tries to.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    with contextlib.chdir("."), contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except SystemExit as stop:
            raise ConfigError(f"code of the workload or an optimizer called sys.exit({stop.code!r})") from stop
        finally:
            if signal.getsignal(signal.SIGINT) is not interrupt:
                signal.signal(signal.SIGINT, interrupt)


@functools.lru_cache(maxsize=1)
def _built(name: str, options: str) -> Workload:
    return build_workload(Choice(name=name, options=json.loads(options)))
