"""A file that holds its own checksum: a bit that flips on a disk is found on reading and not taken for a number.

In the file stands ``"crc32": "`` and then, in eight hexadecimal digits, a CRC-32 of all bytes before and all behind. In
JSON it is the first entry. In Parquet it stands between the last page and the footer, where no reader looks: Parquet's
own checksums are of pages alone, and most of a record stands in the footer. The CRC of pages takes as long as decoding
them; in their place it is taken of sums that every changed word changes (:func:`_sums`). Of all damages one in four
billion is not found. A file without a checksum, as earlier versions and other software write it, is taken as it is.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cbs.files import check_fits, whole

KEY = "crc32"
_NAME = f'"{KEY}": "'.encode()
_DIGITS = 8  # Of 32 bits in hexadecimal
_LENGTH, _MAGIC = 4, b"PAR1"  # A Parquet file ends with the length of its footer, in so many bytes, and these letters
_ROW = 256  # Words of eight bytes


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file with its checksum."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content = sink.getvalue().to_pybytes()
    footer = _footer(content)
    return _filled_in(content[:footer] + _NAME, b'"' + content[footer:])


def json_bytes(content: dict[str, Any]) -> bytes:
    """A dictionary as JSON with its checksum."""
    before, name, behind = json.dumps({KEY: "", **content}, indent=2).encode().partition(_NAME)
    return _filled_in(before + name, behind + b"\n")


def read_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file, in memory.

    Raises:
        OSError, pyarrow.ArrowException: if it cannot be read.
        ValueError: if its checksum is that of other content.
    """
    with pa.OSFile(os.fsencode(whole(path, 1.0)), "rb") as file:  # whose name may be no text
        content = file.read_buffer()
    _check(memoryview(content))
    file = pq.ParquetFile(pa.BufferReader(content))
    check_fits(8.0 * file.metadata.num_rows * file.metadata.num_columns)  # a few bytes may stand for millions of rows
    return file


def read_json(path: Path) -> dict[str, Any]:
    """The dictionary in a file, without its checksum.

    Raises:
        OSError, RecursionError: if it cannot be read.
        ValueError: if it is not JSON, or something else than a dictionary, or its checksum is that of other content.
    """
    content = whole(path).read_bytes()
    _check(memoryview(content))
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    value.pop(KEY, None)
    return value


def _check(content: memoryview) -> None:
    name = _footer(content) - _DIGITS - len(_NAME) - 1
    if name < 0 or bytes(content[name : name + len(_NAME)]) != _NAME:
        name = content.tobytes().find(_NAME)  # the first: what the content itself may say stands behind it
    digits = name + len(_NAME)
    behind = digits + _DIGITS
    if name >= 0 and bytes(content[digits:behind]) != _crc32(content[:digits], content[behind:]):
        raise ValueError("its checksum is not that of its content")


def _footer(content: bytes | memoryview) -> int:
    """Where the footer of a Parquet file begins; -1 where this is none."""
    end = bytes(content[-_LENGTH - len(_MAGIC) :])
    length = int.from_bytes(end[:_LENGTH], "little")
    return max(-1, len(content) - len(end) - length) if end[_LENGTH:] == _MAGIC else -1


def _filled_in(before: bytes, behind: bytes) -> bytes:
    return before + _crc32(before, behind) + behind


def _crc32(before: bytes | memoryview, behind: bytes | memoryview) -> bytes:
    return b"%08x" % zlib.crc32(behind, zlib.crc32(_sums(before)))


def _sums(content: bytes | memoryview) -> bytes:
    """The sums of the rows and of the columns of a table that the words of the content fill row by row, modulo 2^64,
    and the bytes that are left."""
    rows = len(content) // (8 * _ROW)
    words = np.frombuffer(content, "<u8", rows * _ROW).reshape(rows, _ROW)
    return words.sum(0).tobytes() + words.sum(1).tobytes() + bytes(content[words.nbytes :])
