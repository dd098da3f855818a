"""Files of a folder, a ZIP archive or a TAR archive by name, each read on demand."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from cbs.errors import DataError, reason
from cbs.files import check_fits, whole

Tree = dict[str, Callable[[], bytes]]
"""Mapping from the path inside the tree, with ``/`` between its parts, to a function that reads the file."""

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def open_tree(path: Path) -> Tree:
    """Return the files of a folder or an archive, or a single file, in the order of their names.

    Members of a ZIP archive and of an uncompressed TAR archive are read on demand, as are those of TAR archives inside
    an uncompressed one, which count as folders. A compressed TAR archive is read completely.

    Raises:
        DataError: if the path does not exist, or is a damaged archive.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    try:
        if path.is_dir():
            files = (file for file in path.rglob("*") if file.is_file())
            found: Tree = {file.relative_to(path).as_posix(): partial(_whole, file) for file in files}
        elif path.name.lower().endswith(".zip"):
            archive = zipfile.ZipFile(path)
            found = {
                item.filename: partial(_unzipped, archive, item) for item in archive.infolist() if not item.is_dir()
            }
        elif path.name.lower().endswith(".tar"):
            with path.open("rb") as stream:
                found = {name: partial(_read_at, path, *place) for name, place in _members(stream)}
        elif path.name.lower().endswith(ARCHIVES):
            with tarfile.open(path) as packed:
                found, total = {}, 0
                for item in packed:
                    check_fits(2.0 * (total := total + item.size))
                    content = packed.extractfile(item) if item.isfile() else None
                    found |= {item.name: partial(bytes, content.read())} if content is not None else {}
        else:
            found = {path.name: partial(_whole, path)}
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: damaged or not an archive ({reason(error)}); fetch it again, or unpack it") from None
    return {name.removeprefix("./"): found[name] for name in sorted(found)}


def read(tree: Tree, name: str, where: Path) -> bytes:
    """Return the content of a file.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return tree[name]()
    except (OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{where / name}: cannot be read ({reason(error)}); fetch it again") from None


def _whole(path: Path) -> bytes:
    return whole(path, 2.0).read_bytes()


def _unzipped(archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> bytes:
    check_fits(2.0 * item.file_size)
    return archive.read(item)


def _members(stream: IO[bytes], before: str = "", offset: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield names, offsets and sizes of the files of a TAR archive that starts at ``offset`` of its file."""
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for item in archive:
            if item.isfile() and item.name.endswith(".tar"):
                inner = archive.extractfile(item)
                if inner is not None:
                    yield from _members(inner, f"{before}{item.name[:-4]}/", offset + item.offset_data)
            elif item.isfile():
                yield before + item.name, (offset + item.offset_data, item.size)


def _read_at(path: Path, offset: int, size: int) -> bytes:
    check_fits(2.0 * size)
    with path.open("rb") as stream:
        stream.seek(offset)
        content = stream.read(size)
    if len(content) < size:
        raise EOFError(f"{size - len(content)} bytes are missing at its end")
    return content
