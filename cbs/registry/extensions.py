"""Folders that add entries to the registries from outside their packages: questions and extensions.

Such a folder is a package whose modules are named after their content: ``command`` (or ``commands``, a package whose
modules are commands and whose packages are groups of commands), ``tables`` and ``figures``. Entries of a registry are
in a module named after the last part of the registry's package: ``optimizers``, ``workloads``, ``importers``. If that
module is a package, its own modules hold the entries.

An extension is such a folder. A distribution lists its extensions in the entry points of group ``cbs.extensions``::

    [project.entry-points."cbs.extensions"]
    tiny = "my_package.tiny"

The built-in extensions are the folders of ``extensions`` at the top of the repository and need no entry point, because
the entry points of an editable installation are only as recent as the installation; apart from that both kinds are
treated alike. Nothing is imported to find them.
"""

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cbs.errors import CbsError, ConfigError

GROUP = "cbs.extensions"
BUILT_IN = "extensions"

_HOME = Path(__file__).resolve().parents[2]


class Folder(NamedTuple):
    """A folder of entries: its name, its package, and its path."""

    name: str
    package: str
    path: Path

    def modules(self, kind: str) -> dict[str, Path]:
        """Return the full names and files of this folder's modules that hold entries of a kind.

        Args:
            kind: name of a module, or of a package of modules.
        """
        file, folder, name = self.path / f"{kind}.py", self.path / kind, f"{self.package}.{kind}"
        if file.is_file():
            return {name: file}
        inner = sorted(folder.glob("*.py")) if (folder / "__init__.py").is_file() else []
        return {name if each.stem == "__init__" else f"{name}.{each.stem}": each for each in inner}


def within(package: str) -> list[Folder]:
    """Return the folders in a package, by name.

    Raises:
        ModuleNotFoundError: if the package does not exist.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package!r}")
    return _folders(package, [Path(folder) for folder in spec.submodule_search_locations])


@functools.cache
def extensions() -> tuple[Folder, ...]:
    """Return all extensions: the built-in ones, then those that distributions list, each sorted by name.

    Raises:
        ConfigError: if the package of a listed extension does not exist, or two extensions have the same name.
    """
    found = {folder.name: folder for folder in _folders(BUILT_IN, [_HOME / BUILT_IN])}
    for entry in sorted(entry_points(group=GROUP)):
        if entry.name in found and found[entry.name].package == entry.value:
            continue
        try:
            spec = importlib.util.find_spec(entry.value)
        except ImportError:
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"extension {entry.name!r} should be the package {entry.value}, which does not "
                f"exist; reinstall or uninstall {entry.dist.name if entry.dist else 'the distribution that lists it'}"
            )
        if entry.name in found:
            raise ConfigError(
                f"two extensions are called {entry.name}: {found[entry.name].package} and {entry.value}; uninstall one"
            )
        found[entry.name] = Folder(entry.name, entry.value, Path(next(iter(spec.submodule_search_locations))))
    return tuple(found.values())


def modules(kind: str, package: str = "") -> Iterator[tuple[str, Path]]:
    """Yield full names and files of the modules that hold entries of a kind, in the folders of a package, if one is
    named, and in the extensions."""
    for folder in (*(within(package) if package else ()), *extensions()):
        yield from folder.modules(kind).items()


def load(module: str) -> ModuleType:
    """Import a module of a folder.

    Raises:
        ConfigError: if the import fails.
    """
    try:
        return importlib.import_module(module)
    except CbsError:
        raise
    except Exception as error:
        raise ConfigError(f"cannot import {module}: {type(error).__name__}: {error}") from error


def _folders(package: str, folders: list[Path]) -> list[Folder]:
    inner = [(folder, each) for folder in folders for each in pkgutil.iter_modules([str(folder)]) if each.ispkg]
    return [Folder(each.name, f"{package}.{each.name}", folder / each.name) for folder, each in inner]
