"""A file or folder is written beside its place and then moved there, so a failure leaves nothing half-written; and a
file that holds its own checksum, so a bit that flips on a disk is found on reading and not taken for a number.

In the file stands ``"crc32": "`` and then, in eight hexadecimal digits, a CRC-32 of all bytes before and all behind. In
JSON it is the first entry. In Parquet it stands between the last page and the footer, where no reader looks: Parquet's
own checksums are of pages alone, and most of a record stands in the footer. The CRC of pages takes as long as decoding
them; in their place it is taken of sums that every changed word changes (:func:`_sums`). Of all damages one in four
billion is not found. A file without a checksum, as earlier versions and other software write it, is taken as it is.
"""

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cbs.errors import ResultsError, reason

DAMAGED = ".damaged"  # End of the name of what was set aside

ALWAYS_FITS = 2**20
"""Bytes that every machine can hold, so that it need not be asked for each of thousands of small files."""


def ended(path: Path) -> Path:
    """The path, checked to lead to no device or pipe, whose bytes may have no end or never come.

    Raises:
        OSError: if it does.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path  # who opens it says why
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    if os.path.exists(os.path.realpath(path)):  # a pipe of the shell, /dev/fd/63, has no place
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path


def memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process is in, as in a container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def check_fits(size: float) -> None:
    """Check that the memory of this machine could hold what is about to be read.

    Args:
        size: bytes that it takes.

    Raises:
        OSError: if it could not.
    """
    if size > ALWAYS_FITS and size > memory():
        has = f"{memory() / 1e9:.3g} GB"
        raise OSError(errno.ENOMEM, f"it would take {size / 1e9:.3g} GB of memory, and this machine has {has}")


def whole(path: Path, times: float = 10.0) -> Path:
    """The path, checked to lead to something with an :func:`ended` that memory can hold.

    Args:
        path: the file.
        times: how many times its size reading takes; text cut into cells or JSON takes about ten times.

    Raises:
        OSError: if it does not.
    """
    with contextlib.suppress(FileNotFoundError):
        check_fits(times * ended(path).stat().st_size)
    return path


def move(path: Path, place: Path) -> None:
    """Rename a file or folder; copy and delete a folder that the system cannot rename, as in a container, whose file
    system has layers.

    Raises:
        OSError: if it can do neither; ``path`` is then still there.
    """
    try:
        path.rename(place)
    except OSError as error:
        if error.errno != errno.EXDEV or not path.is_dir():
            raise
        try:
            shutil.copytree(path, place, symlinks=True)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(path)


def set_aside(path: Path) -> Path:
    """Rename a file or folder that cannot be read, so that it is out of the way and nothing is lost; returns its name.

    Raises:
        ResultsError: if it cannot be renamed.
    """
    number = itertools.count(2)
    aside = path.with_name(path.name + DAMAGED)
    while os.path.lexists(aside):
        aside = path.with_name(f"{path.name}-{next(number)}{DAMAGED}")
    try:
        move(path, aside)
    except OSError as error:
        raise ResultsError(f"cannot rename {path}, which is damaged: {reason(error)}") from None
    return aside


def refuse_links(root: Path, path: Path) -> None:
    """Check that nothing between a folder and what is to be written in it is a symbolic link, which could lead
    anywhere; the folder itself may be one.

    Raises:
        ResultsError: naming the link.
    """
    for place in (path, *path.parents):
        if place == root:
            return
        if place.is_symlink():
            raise ResultsError(f"{place} is a symbolic link, nothing is written through it; remove it")


@contextlib.contextmanager
def atomic_file(path: Path, what: str = "", remedy: str = "") -> Iterator[Path]:
    """A draft beside ``path``, with the same suffix; it takes the place of ``path`` once the block is done.

    Args:
        path: the file; its folder is made.
        what: it is, for the message: ``"the report to "``.
        remedy: end of the message.

    Raises:
        ResultsError: if the file cannot be written; what was there before stays.
    """
    draft = path.with_name(f".tmp-{uuid.uuid4().hex}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise ResultsError(f"cannot write {what}{path}: {reason(error)}{remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, what: str = "", remedy: str = "") -> Iterator[Path]:
    """A draft beside ``path``, called ``.tmp-NAME-*``; it takes the place of ``path`` once the block is done.

    Args:
        path: the folder; the one above it is made.
        what: is written, for the message; ``path`` when absent.
        remedy: end of the message.

    Raises:
        ResultsError: if the folder cannot be written; what was there before stays.
    """
    unique = uuid.uuid4().hex
    draft, replaced = (path.with_name(f".tmp-{kind}{path.name}-{unique}") for kind in ("", "replaced-"))
    try:
        draft.mkdir(parents=True)
        yield draft
        if path.exists():
            move(path, replaced)
        move(draft, path)
    except OSError as error:
        if replaced.exists() and not path.exists():
            move(replaced, path)
        raise ResultsError(f"cannot write {what or path}: {reason(error)}{remedy}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def inner_path(outer: Path, inner: Path) -> str | None:
    """``inner`` from inside the folder ``outer``, ``/`` between its parts; ``None`` where it does not lie in it."""
    folder, path = outer.resolve(), inner.resolve()
    return path.relative_to(folder).as_posix() if folder in path.parents else None


KEY = "crc32"
_NAME = f'"{KEY}": "'.encode()
_DIGITS = 8
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
