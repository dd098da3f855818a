"""What general tests have to know of a command; an extension says it in its own ``tests/cases.py``."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

from cbs.registry.extensions import extensions

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


def of_extensions(name: str) -> Iterator[Any]:
    """The tables of a name, such as ``FLAGS``, that extensions have."""
    for folder in extensions():
        if (folder.path / "tests" / "cases.py").is_file():
            module = importlib.import_module(f"{folder.package}.tests.cases")
            if hasattr(module, name):
                yield getattr(module, name)
