"""An entry of a registry with its options: as a value, as the text a person types, and as a label beside others.

The text is ``muon`` or ``muon(nesterov=false, betas=[0.9, 0.95])``: :func:`parse_choice` reads what ``str`` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cbs.errors import ConfigError

_WORDS = {"none": None, "null": None, "true": True, "false": False}
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
        """Whether the other is this one, or this one with further options."""
        return self.name == other.name and self.options.items() <= other.options.items()


def json_options(of: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON gives them back.

    Raises:
        ConfigError: if they are not plain JSON values.
    """
    try:
        canonical: dict[str, Any] = json.loads(json.dumps(options, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of {of!r} must be plain JSON values: {error}") from None
    return canonical


def called(name: str, options: Iterable[tuple[str, Any]]) -> str:
    """A name with options behind it, as :func:`parse_choice` reads it."""
    settings = ", ".join(f"{key}={value_text(value)}" for key, value in options)
    return f"{name}({settings})" if settings else name


def parse_choice(text: str) -> Choice:
    """``name`` or ``name(option=value, ...)``; values as of :func:`parse_value`.

    Raises:
        ConfigError: if it is of neither form, or an option appears twice.
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
    """:func:`parse_choice`, where text of another form is a name as it stands: other tools call optimizers anything."""
    try:
        return parse_choice(text)
    except ConfigError:
        return Choice(name=text)


def parse_value(text: str) -> Any:
    """A value as a person types it.

    A number, ``true``, ``false``, ``none``, a list in brackets or parentheses, a dictionary in braces, text in double
    quotes as in JSON or in single ones; anything else is text as it stands.

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
        raise ConfigError(f"{text!r} does not end with {_CLOSING[text[0]]!r}; text that is no list goes in quotes")
    parts = split(text[1:-1], text)
    if text[0] != "{":
        return [parse_value(part) for part in parts]
    pairs = [split(part, text, ":") for part in parts]
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigError(f"{text!r} is no dictionary; write {{name: value, ...}}")
    return {str(parse_value(key)): parse_value(value) for key, value in pairs}


def value_text(value: Any) -> str:
    """A JSON value as :func:`parse_value` reads it."""
    if isinstance(value, str):
        same = _BARE.fullmatch(value) and parse_value(value) == value
        return value if same else json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {value_text(part)}' for key, part in value.items())}}}"
    return "none" if value is None else json.dumps(value)


def labels(choices: Sequence[Choice]) -> list[str]:
    """What each is called among the others: its name, and where there are several of that name, the options in which
    these differ."""
    distinct = differences([choice.options for choice in choices], [choice.name for choice in choices])
    return [str(Choice(name=choice.name, options=options)) for choice, options in zip(choices, distinct, strict=True)]


def differences(settings: Sequence[Mapping[str, Any]], kinds: Sequence[Hashable]) -> list[dict[str, Any]]:
    """Of each mapping, the items in which those of its kind differ; one that is missing differs from any value."""
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
    """The parts between marks that no bracket and no quote holds; an empty last one does not count."""
    parts, depth, start = [], list[str](), 0
    for place, character in _outside_quotes(inside, whole):
        if character in _CLOSING:
            depth.append(_CLOSING[character])
        elif character in _CLOSING.values() and (not depth or depth.pop() != character):
            raise ConfigError(f"{whole!r}: {character!r} closes nothing")
        elif character == mark and not depth:
            parts.append(inside[start:place])
            start = place + 1
    if depth:
        raise ConfigError(f"{whole!r}: {depth[-1]!r} is missing")
    parts += [inside[start:]] if inside[start:].strip() else []
    if not all(part.strip() for part in parts):
        raise ConfigError(f"{whole!r}: nothing stands before a {mark!r}")
    return parts


def _outside_quotes(text: str, whole: str) -> Iterator[tuple[int, str]]:
    """Places and characters that are not in quotes."""
    place = 0
    while place < len(text):
        if text[place] not in "\"'":
            yield place, text[place]
            place += 1
            continue
        quoted = _QUOTED.match(text, place)
        if quoted is None:
            raise ConfigError(f"{whole!r}: a quote is not closed")
        place = quoted.end()
