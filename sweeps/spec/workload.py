"""The workload of a sweep, built once per process however often it is needed."""

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
    """Return the result of :func:`cbs.workloads.build_workload`, reusing the last one if it was for the same choice.

    Raises:
        ConfigError: if an external program trains, whose model is not known here.
    """
    if choice.name == COMMAND:
        raise ConfigError("a program trained these trials (--command), and its model and data are not known here")
    return _built(choice.name, json.dumps(choice.options, sort_keys=True))


@contextlib.contextmanager
def calling_theirs() -> Iterator[None]:
    """Run other people's code in the block safely: what it prints goes to standard error, the working folder and the
    handler of Ctrl-C are restored afterwards, and it cannot end the process.

    Raises:
        ConfigError: if it calls ``sys.exit``.
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
