"""Registries, which map names to objects that live one per file, and parsers of what users type for them."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cbs.errors import CbsError, ConfigError, UnknownNameError
from cbs.registry.extensions import load, modules

__all__ = ["Fallback", "ImportFallback", "Registry", "completing", "lacking", "listed", "only_code"]


# Matches, at the start of a line, a decorator, a call of `register`, or the assignment of an entry to its own
# name.
_REGISTRATION = re.compile(r'^(?:@[\w.]+|\w+\.register|([a-z_]+) = \w+(?=\(\s*"\1"))\(\s*"([\w-]+)"', re.MULTILINE)

_allowed: frozenset[str] | None = None  # Names that :class:`ImportFallback` may import; ``None`` for all


@contextlib.contextmanager
def only_code(names: Iterable[str] | None) -> Iterator[None]:
    """Import no name of the form ``package.module:name`` inside the block except ``names``.

    For names that come from a file and not from the user: somebody else's results folder may name any code.

    Args:
        names: names that the user has allowed; ``None`` changes nothing.
    """
    global _allowed
    before = _allowed
    if names is not None:
        _allowed = frozenset(names) if before is None else before & frozenset(names)
    try:
        yield
    finally:
        _allowed = before


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Fallback(Protocol[T_co]):
    """Source of entries beyond those that modules register."""

    def names(self) -> list[str]:
        """Return all names that :meth:`get` serves; may be slow."""

    def get(self, name: str) -> T_co | None:
        """Return the entry called ``name``; ``None`` if there is none.

        Raises:
            ConfigError: if the name is known but its entry cannot be made.
        """

    def describe(self) -> str:
        """Return what the names stand for, as the last item of a list: ``"everything of library x"``."""


class ImportFallback:
    """Fallback that imports names of the form ``package.module:name``, from the working folder or installed packages.

    Args:
        kind: what an entry is called in error messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def names(self) -> list[str]:
        """Return an empty list, because any module can be named."""
        return []

    def get(self, name: str) -> Any:
        """Import the named object, if the name has a colon.

        Raises:
            ConfigError: if the module cannot be imported or has no callable of that name, or if the name may not be
                imported here, see :func:`only_code`.
        """
        module_name, colon, entry = name.partition(":")
        if not colon:
            return None
        if _allowed is not None and name not in _allowed:
            raise ConfigError(
                f"{self.kind} {name!r} is code that the results name, and anybody may have written them; to allow it "
                f"to run: --code {shlex.quote(name)}"
            )
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # keep its output apart from the command's own
                module = importlib.import_module(module_name)
        except CbsError:
            raise
        except (Exception, SystemExit) as error:  # a script may call sys.exit() when imported
            raise ConfigError(
                f"cannot import {self.kind} module {module_name!r}: {type(error).__name__}: {error}"
            ) from error
        if not callable(getattr(module, entry, None)):
            raise ConfigError(f"{self.kind} {name!r}: {module_name} has no function {entry!r}")
        return getattr(module, entry)

    def describe(self) -> str:
        """Return the form of such a name."""
        return "your own package.module:name"


class _Anything(Protocol):
    """Protocol without members, to recognize the attributes that every protocol has."""


def lacking(entry: object, base: type) -> list[str]:
    """Return the members of a protocol or base class that an object does not have, or has left abstract."""
    methods = [
        name
        for name, value in vars(base).items()
        if callable(value) and name not in vars(_Anything) and (name.endswith("__") or not name.startswith("_"))
    ]
    absent = {name for name in {*inspect.get_annotations(base), *methods} if not hasattr(entry, name)}
    return sorted(absent | set(getattr(entry, "__abstractmethods__", ())))


def _called(wanted: Any) -> str:
    """Return the name of a class, or of a union of classes, for an error message."""
    kinds = getattr(wanted, "__args__", (wanted,))
    return " or ".join("a function" if kind is Callable else f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


class Registry(Generic[T]):
    """Names and the objects they stand for.

    >>> FLAVOURS = Registry("flavour", "cbs.registry")
    >>> @FLAVOURS.register("vanilla")
    ... def vanilla(scoops=1):
    ...     return "vanilla " * scoops
    >>> FLAVOURS.make("vanilla", scoops=2), FLAVOURS.names()
    ('vanilla vanilla ', ['vanilla'])

    Args:
        kind: what an entry is called in error messages, for example ``"optimizer"``.
        package: package whose modules hold the entries; imported at the first lookup. In extensions the modules named
            after its last part hold entries, too.
        folders: a package whose folders are searched like extensions.
        derived_from: the class that every entry derives from, where entries are classes.
        instance_of: the class of every entry, where entries are objects.
        makes: what every entry returns, where entries are called: a class, a union of classes, or a protocol, from
            which the result need not inherit.

    Attributes:
        fallback: source of entries for names that no module has registered; a module of the package may set it.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        *,
        folders: str = "",
        derived_from: type | None = None,
        instance_of: type | None = None,
        makes: Any = None,
    ) -> None:
        self.kind = kind
        self.package = package
        self.folders = folders
        self._derived_from = derived_from
        self._instance_of = instance_of
        self._makes = makes
        self._entries: dict[str, T] = {}
        self._discovered = False
        self.fallback: Fallback[T] | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument under ``name``.

        The decorator raises a ``ConfigError`` if the name is taken, or the argument does not suit the registry.
        """

        def decorate(entry: T) -> T:
            where = f"{self.kind} {name!r}, registered in {getattr(entry, '__module__', type(entry).__module__)},"
            if name in self._entries:
                raise ConfigError(f"{where} has a name that is already taken; choose another")
            if problem := self._unfit(entry):
                raise ConfigError(f"{where} {problem}")
            self._entries[name] = entry
            return entry

        return decorate

    def _unfit(self, entry: Any) -> str:
        """Return why an object cannot be an entry of this registry; empty if it can."""
        base = self._derived_from
        if base is not None and (not isinstance(entry, type) or base not in entry.__mro__):
            return f"must be a class derived from {_called(base)}"
        if isinstance(entry, type) and (missing := lacking(entry, base or object)):
            return f"is a class without {', '.join(missing)}"
        if self._instance_of is not None and not isinstance(entry, self._instance_of):
            return f"must be a {_called(self._instance_of)}, not a {type(entry).__name__}"
        if self._makes is not None and not callable(entry):
            return f"must be a function that returns {_called(self._makes)}"
        return ""

    def make(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the entry called ``name``; its parameters beyond ``args`` are its options.

        Raises:
            ConfigError: if the name or an option is unknown, an option is missing, or the result has the wrong type.
        """
        entry: Any = self[name]
        try:
            parameters = inspect.signature(entry).parameters
            inspect.signature(entry).bind(*args, **options)
        except TypeError as error:
            known = ", ".join(sorted([*parameters][len(args) :])) or "none"
            raise ConfigError(f"{self.kind} {name!r}: {error}; its options are: {known}") from None
        made, wanted = entry(*args, **options), self._makes
        if getattr(wanted, "_is_protocol", False):
            missing = lacking(made, wanted)
            problem = f"without {', '.join(missing)}" if missing else ""
        else:
            problem = "" if wanted is None or isinstance(made, wanted) else f"and not {_called(wanted)}"
        if problem:
            raise ConfigError(f"{self.kind} {name!r} makes a {type(made).__name__} {problem}")
        return made

    def names(self) -> list[str]:
        """Return the registered names, sorted; those of the fallback are :meth:`more_names`."""
        self._discover()
        return sorted(self._entries)

    def more_names(self) -> list[str]:
        """Return the names that only the fallback serves, sorted; may be slow."""
        self._discover()
        return sorted(set(self.fallback.names()) - set(self._entries)) if self.fallback else []

    def __getitem__(self, name: str) -> T:
        """Return the entry called ``name``: a registered one, else the fallback's.

        Raises:
            UnknownNameError: with the nearest known names.
            ConfigError: if the fallback knows the name but cannot make its entry.
        """
        self._discover()
        if name in self._entries:
            return self._entries[name]
        entry = self.fallback.get(name) if self.fallback else None
        if entry is None:
            matches = get_close_matches(name.lower(), [*self.names(), *self.more_names()], n=9, cutoff=0.5)
            likeness = {match: SequenceMatcher(None, match, name.lower()).ratio() for match in matches}
            near = sorted(matches, key=lambda match: (-likeness[match], match not in self._entries))[:3]
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            known = [*self.names(), *([self.fallback.describe()] if self.fallback else [])]
            raise UnknownNameError(f"unknown {self.kind} {name!r}: {hint}known names are {', '.join(known)}")
        return entry

    def __contains__(self, name: object) -> bool:
        self._discover()
        if name in self._entries or self.fallback is None or not isinstance(name, str):
            return name in self._entries
        try:
            return self.fallback.get(name) is not None
        except ConfigError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _discover(self) -> None:
        if self._discovered:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for name, _ in modules(self.package.rpartition(".")[2], self.folders):
            load(name)
        self._discovered = True


@functools.cache
def listed(package: str, folders: str = "") -> str:
    """Return the names that the modules of ``package`` and of extensions register, sorted, for a help text: ``"adam,
    adamw"``.

    They are read from the source files, because importing the modules would import torch or pandas.

    Args:
        package: package of the registry.
        folders: see :class:`Registry`.

    Raises:
        ModuleNotFoundError: if the package does not exist.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package!r}")
    files = [file for place in spec.submodule_search_locations for file in Path(place).glob("*.py")]
    files += [file for _, file in modules(package.rpartition(".")[2], folders)]
    return ", ".join(sorted({name for file in files for _, name in _REGISTRATION.findall(file.read_text("utf-8"))}))


def completing(package: str) -> Callable[[], list[str]]:
    """Return the ``autocompletion`` of a Typer option whose values are the names of :func:`listed`."""
    return lambda: listed(package).split(", ")
