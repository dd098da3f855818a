"""The modules of the ``cbs`` commands, found without importing them, and the command line of this process."""

import importlib
import pkgutil
import re
import shlex
import sys
from collections.abc import Sequence

from cbs.registry.extensions import extensions, within

# An option in the command line of a program whose value is nobody else's business
_SECRET = re.compile(
    r"(?i)(--?(?:[\w-]*[-_])?(?:api[-_]?key|token|password|secret)(?:=|\s+))('[^']*'|\"[^\"]*\"|[^\s'\"]+)"
)


def command_modules() -> dict[str, list[str]]:
    """Return the modules of every command, by its name.

    A module of ``sweeps.commands`` has a function ``command``, which becomes the command with the module's name:
    ``import_`` as ``import`` and ``noise_scale`` as ``noise-scale``. The same holds for the module ``command`` in the
    folder of a question or an extension, with the name of the folder. A package, also one in the ``commands`` of a
    folder, is a group, whose commands are typed after its name. Several places may contribute to a group.
    """
    by_command: dict[str, list[str]] = {}
    places: list[tuple[str, list[str]]] = []
    for folder in (*within("analysis.questions"), *extensions()):
        places.append((f"{folder.package}.commands", [str(folder.path / "commands")]))
        if (folder.path / "command.py").is_file():
            by_command.setdefault(typed(folder.name), []).append(f"{folder.package}.command")
    places.append(("sweeps.commands", [*importlib.import_module("sweeps.commands").__path__]))
    for package, path in places:
        for module in pkgutil.iter_modules(path):
            by_command.setdefault(typed(module.name), []).append(f"{package}.{module.name}")
    return by_command


def typed(name: str) -> str:
    """Return the name of a module as users type it."""
    return name.strip("_").replace("_", "-")


INTERVALS_ANYWHERE = ("--confidence", "--resamples")


def intervals_first(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of the intervals, which ``cbs`` has once for all commands and takes at any place, and what else is
    given."""
    everywhere: list[str] = []
    others = list(arguments)
    index = 0
    while index < len(others) and others[index] != "--":
        name, equals, _ = others[index].partition("=")
        count = 1 if equals else 2
        if name in INTERVALS_ANYWHERE:
            everywhere += others[index : index + count]
            del others[index : index + count]
        else:
            index += 1
    return everywhere, others


def command_line() -> str:
    """Return the command of this process, fit for a shell, with ``***`` in place of keys, tokens and passwords."""
    return shlex.join(["cbs", *map(masked, sys.argv[1:])])


def masked(command: str) -> str:
    """Return a command line with ``***`` in place of the values of ``--api-key``, ``--hf-token``, ``--password``.

    >>> masked("train.py --api-key=abc --lr 1e-3")
    'train.py --api-key=*** --lr 1e-3'
    """
    return _SECRET.sub(r"\1***", command)
