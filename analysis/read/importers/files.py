"""Find and read the files of a source; every failure is reported in one line that names the file."""

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cbs.errors import DataError, reason
from cbs.files import whole

T = TypeVar("T")


def below(top: Path, *patterns: str) -> list[Path]:
    """Return the files below a folder whose names match a pattern, sorted; if ``top`` is a file, the file itself."""
    if top.is_file():
        return [top] if any(fnmatch.fnmatchcase(top.name, pattern) for pattern in patterns) else []
    found = {
        os.path.join(root, name)
        for root, _, names in os.walk(top)
        for pattern in patterns
        for name in fnmatch.filter(names, pattern)
    }
    return sorted(map(Path, found))


class _Plain(yaml.SafeLoader):
    """Loader that reads objects of unknown classes as null and never creates such objects."""


_Plain.add_multi_constructor("", lambda loader, suffix, node: None)


def read(path: Path, parse: Callable[[bytes], T], remedy: str = "check its permissions") -> T:
    """Return the content of a file as ``parse`` makes it from the bytes; raise ``DataError`` ending with ``remedy`` on
    failure."""
    try:
        return parse(whole(path).read_bytes())
    except (OSError, ValueError, RecursionError, TypeError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {path}: {reason(error)}; {remedy}") from None


def read_mapping(path: Path, remedy: str) -> dict[str, Any]:
    """Return the mapping in a JSON or YAML file."""
    data = read(path, (lambda content: yaml.load(content, _Plain)) if path.suffix == ".yaml" else json.loads, remedy)
    if not isinstance(data, dict):
        raise DataError(f"cannot read {path}: it is not a mapping of names to values; {remedy}")
    return {str(key): value for key, value in data.items()}


def digest(paths: Sequence[Path]) -> str | None:
    """Return the SHA-256 of a file as ``sha256sum`` prints it; for several files, the SHA-256 of what it prints for all
    of them; ``None`` for no file."""
    sums = [read(path, lambda content: hashlib.sha256(content).hexdigest()) for path in paths]
    if len(sums) < 2:
        return sums[0] if sums else None
    lines = "".join(f"{checksum}  {path}\n" for checksum, path in zip(sums, paths, strict=True))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
