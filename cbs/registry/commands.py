"""Where the commands of ``cbs`` are, found without importing them."""

from __future__ import annotations

import importlib
import pkgutil

from cbs.registry.extensions import extensions, within


def command_modules() -> dict[str, list[str]]:
    """Where every command is, by its name.

    A module of ``sweeps.commands`` has a function ``command``, which becomes the command of its name, ``import_`` as
    ``import`` and ``noise_scale`` as ``noise-scale``; so has the module ``command`` of the folder of a question or an
    extension, for the name of the folder. A package, also one in the ``commands`` of a folder, is a group: the commands
    of its modules stand behind its name. A group may stand in several places.
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
    """A name of a module as people type it."""
    return name.strip("_").replace("_", "-")
