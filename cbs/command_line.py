"""The command line of this process, as folders and messages may show it."""

from __future__ import annotations

import re
import shlex
import sys

_SECRET = re.compile(
    r"(?i)(--?(?:[\w-]*[-_])?(?:api[-_]?key|token|password|secret)(?:=|\s+))('[^']*'|\"[^\"]*\"|[^\s'\"]+)"
)
"""An option in the command line of a program whose value is nobody else's business."""


def command_line() -> str:
    """Return the command, fit for a shell, with ``***`` in place of keys, tokens and passwords."""
    return shlex.join(["cbs", *map(masked, sys.argv[1:])])


def masked(command: str) -> str:
    """Return a command line with ``***`` in place of the values of ``--api-key``, ``--hf-token``, ``--password``."""
    return _SECRET.sub(r"\1***", command)
