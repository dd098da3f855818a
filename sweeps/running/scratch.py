"""Folders for temporary files: where Ray keeps its own, whether there is room, and cleaning up after killed sweeps."""

import atexit
import contextlib
import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from cbs.errors import ConfigError, Unfinished, reason
from sweeps.folder import described, lives

_FOLDER, _OWNER, _OPEN = "cbs-ray-", "owner.json", "r"

_own: list[Path] = []  # Temporary folders of this process
_MOST_SOCKET = 107 if sys.platform == "linux" else 103  # Longest path of a socket in bytes
# Bytes that Ray and this package append to the path of the folder for temporary files
_SOCKETS = len(f"/{_FOLDER}1234567-12345678/{_OPEN}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
_SHORT = "/tmp"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # No room, by the file system, a quota or a limit of the process
_LEAST_ROOM = 2**20  # Bytes of free space; with less room for its temporary files, Ray fails in one way or another


def temporary_folder(parent: str | None = None) -> Path:
    """Create a temporary folder that names its owner, so that a later sweep can remove it if this process is killed.

    Only this user can enter it. What lies in it may be open to everybody, as Ray makes its own folders.

    Raises:
        Unfinished: if there is no room for it.
        ConfigError: if it cannot be made for another reason.
    """
    try:
        _own.append(Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=parent)))
        (_own[-1] / _OWNER).write_text(json.dumps(described()))
        (_own[-1] / _OPEN).mkdir()
    except OSError as error:
        if error.errno in _FULL:
            check_room(error)
        raise ConfigError(f"cannot write temporary files: {reason(error)}; set TMPDIR to a folder with room") from None
    return _own[-1] / _OPEN


def remove_folder(folder: Path) -> None:
    """Remove what :func:`temporary_folder` has created."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    with contextlib.suppress(ValueError):
        _own.remove(folder.parent)


def remove_own_folders() -> None:
    """Remove all temporary folders of this process, not those of one that it was forked from."""
    while _own:
        folder = _own.pop()
        if folder.name.startswith(f"{_FOLDER}{os.getpid()}-"):
            shutil.rmtree(folder, ignore_errors=True)


atexit.register(remove_own_folders)


def folder_of_sockets() -> str | None:
    """Return the parent folder for a private Ray: ``None`` for the system's folder of temporary files, or
    :data:`_SHORT` if the path of that one is too long for sockets, as on macOS."""
    try:
        long = len(os.fsencode(tempfile.gettempdir())) + _SOCKETS > _MOST_SOCKET
    except FileNotFoundError:
        return None  # there is none, which :func:`temporary_folder` reports
    return _SHORT if long else None


def check_room(error: Exception) -> None:
    """Check that Ray's error does not come from a full disk, a quota, or a limit on file sizes, whatever its message.

    Raises:
        Unfinished: if it does.
    """
    folder = folder_of_sockets() or tempfile.gettempdir()
    refused = isinstance(error, OSError) and error.errno in _FULL
    if refused or shutil.disk_usage(folder).free < _LEAST_ROOM:
        hint = "make room, or set TMPDIR to a folder that has it"
        raise Unfinished(f"no room for temporary files in {folder}; {hint}") from None


def remove_stale_folders() -> None:
    """Remove this user's temporary folders whose owner is certainly dead: it ran here and was killed."""
    parents = {tempfile.gettempdir(), folder_of_sockets() or tempfile.gettempdir()}
    for folder in (path for parent in parents for path in Path(parent).glob(f"{_FOLDER}*-*")):
        try:
            about = folder.lstat()
            mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            owner = json.loads((folder / _OWNER).read_text()) if mine else None
        except (OSError, ValueError, RecursionError):
            continue  # it is just being made, or not ours
        if isinstance(owner, dict) and lives(owner) is False:
            shutil.rmtree(folder, ignore_errors=True)
