"""An entry of a registry with its options: as a value, as text that a user types, and as a label among others.

The text is ``muon`` or ``muon(nesterov=false, betas=[0.9, 0.95])``: :func:`parse_choice` reads what ``str`` writes.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cbs.errors import ConfigError

_WORDS = {"none": None, "null": None, "true": True, "false": False}
# Digits that begin with 0 are names, as of dates; a float holds no more than some 300 digits before the point.
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,300})", re.ASCII)
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[^\W\d][\w.]*")
_BARE = re.compile(r"[\w./@+-]+", re.ASCII)
_QUOTED = re.compile(r""""(\\.|[^"\\])*"|'[^']*'""", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An entry of a registry and the options it is built with.

    Attributes:
        name: name in the registry, or ``package.module:function`` for one of the user's own.
        options: keyword arguments; only JSON values.

    Example:

        >>> str(Choice(name="merit", options={"lr": 0.01}))
        'merit(lr=0.01)'
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a name must not be empty")
        object.__setattr__(self, "options", json_options(self.name, self.options))

    def __str__(self) -> str:
        return called(self.name, sorted(self.options.items()))

    def covers(self, other: Choice) -> bool:
        """Return whether ``other`` is this choice, possibly with further options."""
        return self.name == other.name and self.options.items() <= other.options.items()


def json_options(of: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options as they are after a round trip through JSON.

    Raises:
        ConfigError: if they are not plain JSON values.
    """
    try:
        canonical: dict[str, Any] = json.loads(json.dumps(options, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of {of!r} must be plain JSON values: {error}") from None
    return canonical


def called(name: str, options: Iterable[tuple[str, Any]]) -> str:
    """Return a name followed by its options, in the form that :func:`parse_choice` reads."""
    settings = ", ".join(f"{key}={value_text(value)}" for key, value in options)
    return f"{name}({settings})" if settings else name


def parse_choice(text: str) -> Choice:
    """Parse ``name`` or ``name(option=value, ...)``; values as in :func:`parse_value`.

    >>> parse_choice("muon(nesterov=false)")
    Choice(name='muon', options={'nesterov': False})

    Raises:
        ConfigError: if the text has neither form, or an option appears twice.
    """
    name, opening, rest = (part.strip() for part in text.partition("("))
    if not opening:
        return Choice(name=name)
    if not rest.endswith(")"):
        raise ConfigError(f"{text!r} does not end with a closing parenthesis; write name(option=value, ...)")
    options: dict[str, Any] = {}
    for part in split(rest[:-1], text):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (_KEY.fullmatch(key) and equals and value):
            raise ConfigError(f"{part.strip()!r} in {text!r} is not option=value; write name(option=value, ...)")
        if key in options:
            raise ConfigError(f"{text!r} gives {key} twice")
        options[key] = parse_value(value)
    return Choice(name=name, options=options)


def read_choice(text: str) -> Choice:
    """Parse like :func:`parse_choice`, but take text of another form as a name, because other tools name optimizers
    freely.
    """
    try:
        return parse_choice(text)
    except ConfigError:
        return Choice(name=text)


def parse_value(text: str) -> Any:
    """Parse a value as a user types it.

    A number, ``true``, ``false``, ``none``, a list in brackets or parentheses, a dictionary in braces, or text in
    double quotes as in JSON or in single quotes; anything else is taken as text.

    Raises:
        ConfigError: if a bracket or a quote is not closed.
    """
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    if text[:1] == '"':
        try:
            return json.loads(text, strict=False)
        except ValueError:
            raise ConfigError(f"{text} is not text in double quotes; write it as in JSON") from None
    if text[:1] == "'" and _QUOTED.fullmatch(text):
        return text[1:-1]
    if text[:1] not in _CLOSING:
        return text
    if text[-1] != _CLOSING[text[0]]:
        raise ConfigError(f"{text!r} does not end with {_CLOSING[text[0]]!r}; put text that is not a list in quotes")
    parts = split(text[1:-1], text)
    if text[0] != "{":
        return [parse_value(part) for part in parts]
    pairs = [split(part, text, ":") for part in parts]
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigError(f"{text!r} is not a dictionary; write {{name: value, ...}}")
    return {str(parse_value(key)): parse_value(value) for key, value in pairs}


def value_text(value: Any) -> str:
    """Return a JSON value as text that :func:`parse_value` reads."""
    if isinstance(value, str):
        same = _BARE.fullmatch(value) and parse_value(value) == value
        return value if same else json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {value_text(part)}' for key, part in value.items())}}}"
    return "none" if value is None else json.dumps(value)


def labels(choices: Sequence[Choice]) -> list[str]:
    """Return a label for each choice among the others: its name, and the options in which choices of the same name
    differ.
    """
    distinct = differences([choice.options for choice in choices], [choice.name for choice in choices])
    return [str(Choice(name=choice.name, options=options)) for choice, options in zip(choices, distinct, strict=True)]


def differences(settings: Sequence[Mapping[str, Any]], kinds: Sequence[Hashable]) -> list[dict[str, Any]]:
    """Return of each mapping the items in which mappings of the same kind differ; a missing item differs from any
    value.

    Args:
        settings: the mappings.
        kinds: kind of each mapping.
    """
    texts: dict[Hashable, list[dict[str, str]]] = {}
    for mapping, kind in zip(settings, kinds, strict=True):
        texts.setdefault(kind, []).append({key: value_text(value) for key, value in mapping.items()})
    unlike = {
        kind: {key for key in set().union(*members) if len({member.get(key) for member in members}) > 1}
        for kind, members in texts.items()
    }
    return [
        {key: value for key, value in mapping.items() if key in unlike[kind]}
        for mapping, kind in zip(settings, kinds, strict=True)
    ]


def split(inside: str, whole: str, mark: str = ",") -> list[str]:
    """Split text at separators outside brackets and quotes; an empty last part is dropped.

    Args:
        inside: text to split.
        whole: text to show in errors.
        mark: the separator.

    Raises:
        ConfigError: if brackets or quotes do not match, or a part is empty.
    """
    parts, depth, start = [], list[str](), 0
    for index, character in _outside_quotes(inside, whole):
        if character in _CLOSING:
            depth.append(_CLOSING[character])
        elif character in _CLOSING.values() and (not depth or depth.pop() != character):
            raise ConfigError(f"{whole!r}: {character!r} has no opening bracket")
        elif character == mark and not depth:
            parts.append(inside[start:index])
            start = index + 1
    if depth:
        raise ConfigError(f"{whole!r}: {depth[-1]!r} is missing")
    parts += [inside[start:]] if inside[start:].strip() else []
    if not all(part.strip() for part in parts):
        raise ConfigError(f"{whole!r}: there is nothing before a {mark!r}")
    return parts


def _outside_quotes(text: str, whole: str) -> Iterator[tuple[int, str]]:
    """Yield positions and characters outside quotes."""
    index = 0
    while index < len(text):
        if text[index] not in "\"'":
            yield index, text[index]
            index += 1
            continue
        quoted = _QUOTED.match(text, index)
        if quoted is None:
            raise ConfigError(f"{whole!r}: a quote is not closed")
        index = quoted.end()


T = TypeVar("T")


def spread(
    kind: type, name: str, *, without: Sequence[str] = (), **defaults: Any
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate an entry that takes options it shares with others as one object: they become options of its own, in the
    place of that argument.

    Args:
        kind: dataclass of the object.
        name: name of the argument.
        without: fields that are not options of this entry.
        defaults: default values of fields that differ from those of the class.

    Example:
        >>> @spread(Choice, "choice", without=("options",))
        ... def shown(*, choice, twice=False):
        ...     return str(choice) * (1 + twice)
        >>> inspect.signature(shown), shown(name="muon", twice=True)
        (<Signature (*, name: 'str', twice=False)>, 'muonmuon')
    """
    shared = {each.name: each for each in inspect.signature(kind).parameters.values() if each.name not in without}
    options = [each.replace(default=defaults.get(option, each.default)) for option, each in shared.items()]

    def decorate(entry: Callable[..., T]) -> Callable[..., T]:
        own = inspect.signature(entry)

        @functools.wraps(entry)
        def call(*args: Any, **given: Any) -> T:
            about = defaults | {option: given.pop(option) for option in shared if option in given}
            return entry(*args, **given, **{name: kind(**about)})

        parameters = [part for each in own.parameters.values() for part in (options if each.name == name else [each])]
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate
