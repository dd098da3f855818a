"""``cbs sweep --mirror``: a copy of the sweep's folder in an object store, from which another machine goes on.

The folder stays what trials are written to and commands read. What is new in it is copied every :data:`SECONDS`, a
trial's record after its other files, so that whoever finds the record finds the trial.
"""

from __future__ import annotations

import json
import platform
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from cbs.errors import ConfigError, ResultsError, reason
from cbs.files import refuse_links, whole_file, whole_folder
from cbs.trial.store import MANIFEST
from sweeps.folder.bounds import BOUNDS
from sweeps.folder.lock import LOCK

SECONDS = 20.0
"""Between two copies."""
STALE_SECONDS = 600.0
"""After so long without a sign of life, whoever else writes to the mirror is taken to be gone."""
OWNER, CLOCK = "mirror-owner.json", ".mirror-clock"
RECORD = "record.parquet"
_LOCAL = (LOCK, BOUNDS, OWNER)

_ERRORS = (OSError, pa.ArrowException)


class Mirror:
    """Fetches what the store has when the block begins, and keeps it up to date until it ends.

    Args:
        address: ``s3://bucket/folder``, ``gs://...``, ``abfs://...``, ``hdfs://...`` or ``file:///folder``, with
            options as :meth:`pyarrow.fs.FileSystem.from_uri` takes them; credentials come from the environment.
        folder: of the sweep, or of several in it.
        say: tells a person.

    Raises:
        ConfigError: if the address is none.
        ResultsError: if the store cannot be read or written, another sweep writes to it, or it holds one of another
            protocol.
    """

    def __init__(self, address: str, folder: Path, say: Callable[[str], None]) -> None:
        self._address, self._root, self._say = address, folder, say
        try:
            self._there, base = fs.FileSystem.from_uri(address)
        except (ValueError, *_ERRORS) as error:
            raise ConfigError(f"--mirror {address}: {reason(error)}; give an address as s3://bucket/folder") from None
        self._base = PurePosixPath(base)
        self._copied: dict[str, tuple[int, int]] = {}
        self._made: set[PurePosixPath] = set()
        self._told_lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Mirror:
        try:
            self._there.create_dir(str(self._base), recursive=True)
            self._check_owner()
            self._own()
            self._fetch()
        except _ERRORS as error:
            raise ResultsError(f"cannot use the mirror {self._address}: {reason(error)}") from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        try:
            self._copy()
            self._there.delete_file(str(self._base / OWNER))
        except _ERRORS as error:
            self._say(f"the mirror {self._address} is not complete: {reason(error)}; the same command completes it")

    def _keep(self) -> None:
        told = False
        while not self._over.wait(SECONDS):
            try:
                self._copy()
                self._own()
                told = False
            except _ERRORS as error:
                if not told:
                    self._say(f"the mirror {self._address} cannot be written: {reason(error)}; trying again")
                told = True

    def _copy(self) -> None:
        """Copy what has changed since the last time; checkpoints that are over go there, too.

        A sweep never removes a trial or its own description: where one is gone, somebody removes the folder, and all
        that the mirror has stays.
        """
        here = self._here()
        for name in sorted(here, key=lambda name: (PurePosixPath(name).name == RECORD, name == MANIFEST, name)):
            if self._copied.get(name) == here[name]:
                continue
            if (parent := (self._base / name).parent) not in self._made:
                self._there.create_dir(str(parent), recursive=True)
                self._made.add(parent)
            try:
                fs.copy_files(
                    str(self._root / name),
                    str(self._base / name),
                    source_filesystem=fs.LocalFileSystem(),
                    destination_filesystem=self._there,
                )
            except FileNotFoundError:
                continue  # a checkpoint that is over, or a trial that is being replaced: the next round knows
            self._copied[name] = here[name]
        gone = [name for name in self._copied if name not in here]
        if lost := [name for name in gone if PurePosixPath(name).name in (RECORD, MANIFEST)]:
            if not self._told_lost:
                self._say(f"{self._root / lost[0]} is gone; the mirror {self._address} keeps what it has")
            self._told_lost = True
            return
        for name in gone:
            self._there.delete_file(str(self._base / name))
            del self._copied[name]

    def _here(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file that belongs in the mirror, by its path in the folder."""
        found = {}
        for path in self._root.rglob("*"):
            name = path.relative_to(self._root)
            if any(part.startswith(".") for part in name.parts) or name.name in _LOCAL:
                continue
            try:
                if path.is_file() and not path.is_symlink():
                    found[name.as_posix()] = _state(path)
            except FileNotFoundError:
                continue
        return found

    def _fetch(self) -> None:
        """Bring what is not here, a trial or a file at a time, each in one piece; it need not be copied back."""
        brought: list[PurePosixPath] = []
        trials: defaultdict[PurePosixPath, list[PurePosixPath]] = defaultdict(list)
        for name in self._names():
            here = self._root / name
            refuse_links(self._root, here)
            if name.parts[-3:-2] == ("trials",):
                trials[name.parent].append(name)
            elif not here.exists():
                with whole_file(here) as draft:
                    self._bring(name, draft)
                brought.append(name)
            elif name.name == MANIFEST:
                self._check_protocol(name)
        for trial, files in trials.items():
            if trial / RECORD in files and not (self._root / trial).exists():
                with whole_folder(self._root / trial) as folder:
                    for name in files:
                        self._bring(name, folder / name.name)
                brought += files
        self._copied = {name.as_posix(): _state(self._root / name) for name in brought}

    def _names(self) -> list[PurePosixPath]:
        """What the mirror holds, by the path in the folder; names that could lead elsewhere are left out."""
        files = self._there.get_file_info(fs.FileSelector(str(self._base), recursive=True))
        found = [PurePosixPath(info.path).relative_to(self._base) for info in files if info.type == fs.FileType.File]
        plain = [name for name in found if not any(part.startswith(".") for part in name.parts)]
        return sorted(name for name in plain if name.name not in _LOCAL)

    def _check_protocol(self, name: PurePosixPath) -> None:
        ours, theirs = (_json(text, name) for text in ((self._root / name).read_bytes(), self._read(name)))
        if ours.get("protocol") != theirs.get("protocol"):
            raise ResultsError(
                f"the mirror {self._address} holds a sweep of another protocol than {self._root}; choose another folder"
            )

    def _check_owner(self) -> None:
        """By the clock of the store, since those of two machines need not agree."""
        if self._there.get_file_info(str(self._base / OWNER)).type != fs.FileType.File:
            return
        self._write(CLOCK, b"")
        now, touched = (self._there.get_file_info(str(self._base / name)).mtime_ns for name in (CLOCK, OWNER))
        self._there.delete_file(str(self._base / CLOCK))
        if abs(now - touched) < STALE_SECONDS * 1e9:
            raise ResultsError(
                f"the mirror {self._address} belongs to a sweep that is running on {self._owner()}; wait for it "
                f"({STALE_SECONDS / 60:.0f} minutes where that is dead), or choose another folder there"
            )

    def _owner(self) -> str:
        told = self._read(OWNER) or b"{}"  # empty while its owner writes it anew
        return str(_json(told, OWNER).get("host", "a machine without a name"))

    def _own(self) -> None:
        self._write(OWNER, json.dumps({"host": platform.node()}).encode())

    def _write(self, name: str, content: bytes) -> None:
        with self._there.open_output_stream(str(self._base / name)) as file:
            file.write(content)

    def _bring(self, name: PurePosixPath, place: Path) -> None:
        fs.copy_files(
            str(self._base / name),
            str(place),
            source_filesystem=self._there,
            destination_filesystem=fs.LocalFileSystem(),
        )

    def _read(self, name: PurePosixPath | str) -> bytes:
        with self._there.open_input_stream(str(self._base / name)) as file:
            return bytes(file.read())


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _json(text: bytes, name: PurePosixPath | str) -> dict[str, Any]:
    """What a small file of the mirror or the folder says.

    Raises:
        ResultsError: if it is damaged.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ResultsError(f"{name} of the mirror cannot be read: {reason(error)}; remove it there") from None
    return found if isinstance(found, dict) else {}
