"""Errors a person can act on.

Every error raised for misuse derives from :class:`CbsError` and carries one line that says what is wrong, where, and
what to do. A trial that diverges or runs out of memory is not misuse: it is data, see :mod:`cbs.record`.
"""

from __future__ import annotations


def reason(error: BaseException) -> str:
    """What the system says of a file, else the first line of what an exception says, else its name."""
    said = getattr(error, "strerror", None) or str(error)
    return (said.splitlines() or [type(error).__name__])[0]


class CbsError(Exception):
    """Misuse of the library or the command line; the message is one line meant for a person."""


class ConfigError(CbsError):
    """A configuration value is outside its domain."""


class UnknownNameError(ConfigError):
    """A name is not in a registry; the message lists the nearest known names."""


class DataError(CbsError):
    """A data file is missing, unreadable or not in the format it claims."""


class ResultsError(CbsError):
    """A results folder is missing, foreign, half-written, of another version, or cannot be written."""


class MissingDependencyError(CbsError):
    """An optional dependency is needed; the message holds the install command."""
