"""A name -> object table whose entries live one per file.

A registry belongs to a package. The first lookup imports the package's modules, and each module registers what it
defines with a decorator, so a new entry is one new file and no edit elsewhere.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from cbs.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and the objects they stand for.

    Args:
        kind: what an entry is called in an error message, for example ``"optimizer"``.
        package: the package whose modules hold the entries; imported at the first lookup.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files its argument under ``name``; a name can be taken once."""

        def decorate(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return decorate

    def names(self) -> list[str]:
        """All known names, sorted."""
        self._discover()
        return sorted(self._entries)

    def __getitem__(self, name: str) -> T:
        """The entry called ``name``.

        Raises:
            UnknownNameError: with the nearest known names.
        """
        self._discover()
        if name not in self._entries:
            near = get_close_matches(name.lower(), self.names(), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise UnknownNameError(f"unknown {self.kind} {name!r}: {hint}known names are {', '.join(self.names())}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _discover(self) -> None:
        if self._discovered:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        self._discovered = True
