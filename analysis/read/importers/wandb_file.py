"""The ``.wandb`` file of an offline run: a log in the format of LevelDB whose records are protocol buffers.

A file is a header of 7 bytes, then blocks of 32 KiB. A block holds records: checksum (CRC-32 of kind and data, 4
bytes), length (2), kind (1: whole, 2: first, 3: middle, 4: last part), data. What is left of a block when no header
fits is padding. See ``wandb/sdk/internal/datastore.py`` and https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.read.importers.files import needed, read_bytes
from cbs.errors import DataError, reason

SUFFIX = ".wandb"

_BLOCK, _HEADER = 32768, 7
_IDENT = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_REMEDY = "copy it again, or sync the run with 'wandb sync' and import entity/project/run"


def read_offline(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read a ``.wandb`` file in full: one dictionary per logged step, in which nested keys are joined with dots, and
    what the run is called (``name``, ``aliases``) and was set to (``config``).

    Raises:
        DataError: if it is unreadable, of another format, cut off or damaged.
        MissingDependencyError: if wandb, which knows the records, is not installed.
    """
    with needed("wandb", "files of offline runs"):
        from google.protobuf.message import DecodeError
        from wandb.proto import wandb_internal_pb2
    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    name, label = path.stem, ""
    for data in _records(read_bytes(path), path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        try:
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                history.append(_items(record.history.item))
            elif kind == "config":
                config |= _items(record.config.update)
            elif kind == "run":
                name, label = record.run.run_id or name, record.run.display_name
                config |= _items(record.run.config.update)
        except (DecodeError, ValueError, RecursionError) as error:
            raise DataError(f"{path} has a record that cannot be read: {reason(error)}; {_REMEDY}") from None
    return history, {"name": name, "aliases": (label or name, path.parent.name), "config": config}


def _items(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _records(content: bytes, path: Path) -> Iterator[bytes]:
    if content[:_HEADER] != _IDENT:
        raise DataError(f"{path} is not a file of an offline run of wandb; {_REMEDY}")
    at, parts, expected = _HEADER, b"", (_WHOLE, _FIRST)
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        start, header = at + _HEADER, content[at : at + _HEADER]
        checksum, length, kind = struct.unpack("<IHB", header.ljust(_HEADER, b"\0"))
        data = content[start : start + length]
        if len(header) < _HEADER or len(data) < length:
            break
        if kind not in expected or zlib.crc32(bytes([kind]) + data) != checksum:
            raise DataError(f"{path} is damaged at byte {at} of {len(content)}; {_REMEDY}")
        at = start + length
        parts += data
        expected = (_MIDDLE, _LAST) if kind in (_FIRST, _MIDDLE) else (_WHOLE, _FIRST)
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""
    if expected == (_MIDDLE, _LAST) or at < len(content):
        raise DataError(f"{path} is cut off in the middle of a record, at byte {at} of {len(content)}; {_REMEDY}")
