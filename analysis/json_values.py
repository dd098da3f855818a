"""What a question found, as plain JSON values."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

import numpy as np


def shown(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that its ``repr`` shows, by name, as :func:`plain`."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}


def plain(value: Any) -> Any:
    """``value`` as JSON has it: what its ``to_json`` says, :func:`shown` of a dataclass without, lists and mappings
    of such."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return shown(value)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, StrEnum) else value


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything in nested dictionaries that holds nothing further."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from flat(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
