"""Folders for temporary files: where Ray keeps its own, whether there is room, and cleaning up after killed sweeps."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

from cbs.errors import ConfigError, Unfinished, reason

_FOLDER = "cbs-ray-"

_MOST_SOCKET = 107 if sys.platform == "linux" else 103
"""Longest path of a socket in bytes."""
_SOCKETS = len(f"/{_FOLDER}1234567-12345678/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
"""Bytes that Ray and this package append to the path of the folder for temporary files."""
_SHORT = "/tmp"

_LEAST_ROOM = 2**20
"""Bytes of free space; with less room for its temporary files, Ray fails in one way or another."""


def temporary_folder(parent: str | None = None) -> str:
    """Create a temporary folder named after this process, so that a later sweep can remove it if this one is killed."""
    try:
        return tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=parent)
    except OSError as error:
        raise ConfigError(f"cannot write temporary files: {reason(error)}; set TMPDIR to a folder with room") from None


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
    refused = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if refused or shutil.disk_usage(folder).free < _LEAST_ROOM:
        hint = "make room, or set TMPDIR to a folder that has it"
        raise Unfinished(f"no room for temporary files in {folder}; {hint}") from None


def own_folders() -> list[Path]:
    """Return the temporary folders of this process."""
    return _folders(str(os.getpid()))


def _folders(pid: str) -> list[Path]:
    parents = {tempfile.gettempdir(), folder_of_sockets() or tempfile.gettempdir()}
    return [path for parent in parents for path in Path(parent).glob(f"{_FOLDER}{pid}-*")]


def remove_stale_folders() -> None:
    """Remove the temporary folders of sweeps whose process was killed."""
    if sys.platform != "linux":
        return
    for folder in _folders("*"):
        pid = folder.name.removeprefix(_FOLDER).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
