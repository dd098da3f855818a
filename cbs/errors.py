"""Errors a person can act on.

Every error raised for misuse derives from :class:`CbsError` and carries one line that says what is wrong, where, and
what to do. A trial that diverges or runs out of memory is not misuse: it is data, see :mod:`cbs.trial.record`.
"""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path


def reason(error: BaseException) -> str:
    """The system's message about a file, else the first line of an exception's message, else its name."""
    message = getattr(error, "strerror", None) or str(error).strip()
    return (message.splitlines() or [type(error).__name__])[0]


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is full: of Python, of the processor or of a device.

    torch raises a kind of its own for a device, a plain ``RuntimeError`` where main memory cannot be had, and for a
    library of the device whatever that says.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(text in message for text in _MEMORY_TEXTS)


_MEMORY_TEXTS = ("can't allocate memory", "out of memory", "_ALLOC_FAILED", "std::bad_alloc")


class CbsError(Exception):
    """Misuse of the library or the command line; the message is one line meant for a person.

    Attributes:
        exit_code: of the command: 1 if some trials are missing or failed, 2 for wrong input, 130 if interrupted.

    Example:
        >>> from cbs import CbsError, Target
        >>> try:
        ...     Target(metric="validation_loss", value=float("nan"))
        ... except CbsError as error:
        ...     print(error.exit_code, error)
        2 target value must be a finite number, got nan
    """

    exit_code = 2


class Unfinished(CbsError):
    """A sweep ended before all of its trials; the finished ones are stored."""

    exit_code = 1


class ConfigError(CbsError):
    """A configuration value is outside its domain."""


class UnknownNameError(ConfigError):
    """A name is not in a registry; the message lists the nearest known names."""


class DataError(CbsError):
    """A data file is missing, unreadable or not in the format it claims."""


class ResultsError(CbsError):
    """A results folder is missing, foreign, half-written, of another version, or cannot be written."""


class DamagedError(ResultsError):
    """A file of a trial is cut off or overwritten: the trial can be set aside and run again.

    Attributes:
        problem: what is wrong, without the remedy.
    """

    def __init__(self, path: Path, error: Exception) -> None:
        self.problem = f"cannot read {path}: {reason(error)}"
        remedy = f"run the sweep again, which sets it aside, or delete the folder {path.parent}"
        super().__init__(f"{self.problem}; {remedy}")


class MissingDependencyError(CbsError):
    """An optional dependency is needed; the message holds the install command."""


@contextlib.contextmanager
def needed(package: str, what: str) -> Iterator[None]:
    """Say how to install a package that the block imports and that is missing.

    Args:
        package: what ``pip install`` takes, by its name on PyPI, which holds for a wheel and for a clone alike.
        what: what needs it, in the plural.

    Raises:
        MissingDependencyError: with the command.
    """
    try:
        yield
    except ImportError as error:
        name = package.partition("[")[0]
        raise MissingDependencyError(f"{what} need {name}: pip install {shlex.quote(package)}") from error
