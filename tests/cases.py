"""What general tests have to know of a command; an extension says it in its own ``tests/cases.py``."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from cbs.registry.extensions import extensions
from sweeps.launching.loop import PlannedSweep
from sweeps.launching.policies import SweepReport
from sweeps.launching.trackers import TRACKERS

Case = tuple[Sequence[str], str]


@dataclass(frozen=True)
class Flags:
    """The flags of one command.

    Attributes:
        functions: recorded functions of the library and what each returns; a callable is called with its arguments.
        base: arguments that every call has.
        cases: flag (or name of an argument) -> (arguments, text in the record), where its type does not say it.
        instead: likewise, for flags that take the place of ``base``.
    """

    functions: dict[str, Any]
    base: Sequence[str] = ()
    cases: dict[str, Case] = field(default_factory=dict)
    instead: dict[str, Case] = field(default_factory=dict)


def answer() -> Mock:
    """A result of the library: whatever is asked of it is recorded."""
    result = Mock(name="answer", path="page", lines=list)
    result.to_json.return_value = {}
    return result


PRESENT = {"analysis.present.write": tuple, "analysis.present.to_json": dict, "analysis.present.show": None}
"""What shows and stores an answer."""


TRAINING: dict[str, Any] = {
    "sweeps.launching.loop.prepare": lambda asked, *_, **__: PlannedSweep(asked, Path("folder"), None),
    "sweeps.launching.loop.carry_out": lambda *_, **__: SweepReport({"trials": 0}, []),
    "sweeps.launching.policies.Once.preview": lambda *_: SweepReport({}, []),
    "sweeps.running.cluster.PrestartedRay": lambda *_: nullcontext(),
    "os.cpu_count": 4,
    "cbs.compute.device.count": 1,
    "sweeps.running.access.check_listening": None,
}
"""What a command that trains calls."""


def of_program(words: list[str]) -> dict[str, Case]:
    """Of a command that trains: the program of one's own that ``words`` ask for, and where and how trials run."""
    run, command = words[:2]
    return {
        "--command": ([run, command, *words[4:]], f"'command': '{command}'"),
        "--reads": (words, "'reads': 'csv'"),
        "--metric": (words, "Target(metric='loss'"),
        "--direction": (words, "direction='above'"),
        "--metric-unit": (words, "'metric_unit': 'nats'"),
        "--example-unit": (words, "'example_unit': 'tree'"),
        "--tokens-per-example": ([*words, "--tokens-per-example", "7"], "'tokens_per_example': 7"),
        "--column": ([*words, "--column", "step=iter"], "'columns': {'step': 'iter'}"),
        "--resume": ([run, f"{command} {{resume}}", *words[2:], "--resume", "--go"], "'resume': '--go'"),
        "--workers-per-trial": (["--workers-per-trial", "2"], "workers_per_trial=2"),
        "--launch": ([*words, "--launch", "nice -n 1"], "launch='nice -n 1'"),
        "--address": (["--address", "host:6379"], "check_listening('host:6379')"),
        "--log": ([word for name in TRACKERS for word in ("--log", name)], f"trackers={TRACKERS.names()}"),
        "--dry-run": (["--dry-run"], "preview("),
        "--json": (["--json"], '"trials": 0'),
    }


def of_extensions(name: str) -> Iterator[Any]:
    """The tables of a name, such as ``FLAGS``, that extensions have."""
    for folder in extensions():
        if (folder.path / "tests" / "cases.py").is_file():
            module = importlib.import_module(f"{folder.package}.tests.cases")
            if hasattr(module, name):
                yield getattr(module, name)
