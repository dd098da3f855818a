"""The workload of a sweep, built once in a process however many parts of it ask."""

from __future__ import annotations

import functools
import json

from cbs.config import Choice
from cbs.workloads import Workload, build_workload

COMMAND = "command"
"""What a workload is called that another program trains (see :mod:`sweeps.external`); there is nothing to build."""


def built(choice: Choice) -> Workload:
    """:func:`cbs.workloads.build_workload`, or what it returned the last time it was asked for the same."""
    return _built(choice.name, json.dumps(choice.options, sort_keys=True))


@functools.lru_cache(maxsize=1)
def _built(name: str, options: str) -> Workload:
    return build_workload(Choice(name=name, options=json.loads(options)))
