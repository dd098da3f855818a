"""Finding and reading the files of a source: every failure is one line with the file in it."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cbs.errors import DataError, reason

T = TypeVar("T")


def below(top: Path, pattern: str) -> list[Path]:
    """The files of a folder and everything below whose names match, sorted; of a file, itself."""
    if top.is_file():
        return [top] if fnmatch.fnmatchcase(top.name, pattern) else []
    return sorted(Path(root) / name for root, _, names in os.walk(top) for name in fnmatch.filter(names, pattern))


class _Plain(yaml.SafeLoader):
    """Takes an object that only the program that wrote it knows for nothing; makes no object of its own."""


_Plain.add_multi_constructor("", lambda loader, suffix, node: None)


def read(path: Path, parse: Callable[[bytes], T], remedy: str = "check its permissions") -> T:
    """What is in a file, as ``parse`` makes it of the bytes; where it cannot, a ``DataError`` that ends with
    ``remedy``."""
    try:
        return parse(path.read_bytes())
    except (OSError, ValueError, RecursionError, TypeError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {reason(error)}; {remedy}") from None


def read_mapping(path: Path, remedy: str) -> dict[str, Any]:
    """The mapping in a JSON or YAML file."""
    data = read(path, (lambda content: yaml.load(content, _Plain)) if path.suffix == ".yaml" else json.loads, remedy)
    if not isinstance(data, dict):
        raise DataError(f"cannot read {path}: it is no mapping of names to values; {remedy}")
    return {str(key): value for key, value in data.items()}


def read_text(path: Path, remedy: str) -> str:
    """The text in a file of UTF-8, without white space around it."""
    return read(path, lambda content: content.decode("utf-8").strip(), remedy)


def digest(paths: Sequence[Path]) -> str | None:
    """SHA-256 of one file, as ``sha256sum`` prints it; of several, that of what it prints for all of them; ``None`` for
    no file."""
    sums = [read(path, lambda content: hashlib.sha256(content).hexdigest()) for path in paths]
    if len(sums) < 2:
        return sums[0] if sums else None
    lines = "".join(f"{checksum}  {path}\n" for checksum, path in zip(sums, paths, strict=True))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
