"""Allow one sweep at a time in a folder: a lock file names its owner, who touches it and reports progress in it.

``cbs status`` reads the file from another terminal. A lock is stale when its owner's process no longer exists. This is
certain if the process ran on this machine; otherwise the lock is stale when it has not been touched for
:data:`STALE_SECONDS`, measured by the clock that dates files in the folder, because the clocks of two machines may
differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cbs.errors import ResultsError, reason
from cbs.files import atomic_file, whole
from cbs.trial.store import LOCK as LOCK
from cbs.trial.store import STALE_SECONDS as STALE_SECONDS
from cbs.trial.store import Store, remove
from sweeps.folder import described, lives
from sweeps.search.search import Observer, Search

BEAT_SECONDS = 5.0  # Seconds between two touches of the file by its owner


@dataclass(frozen=True)
class Owner:
    """The process that holds a folder.

    Attributes:
        content: content of the file: ``host``, ``pid``, ``machine``, ``born``, ``token``, ``command``, ``started``,
            ``beat`` (seconds since 1970), and ``progress``.
        age: seconds since the file was last touched. If a clock was changed, the touch of a living owner corrects it.
    """

    content: dict[str, Any]
    age: float

    @property
    def alive(self) -> bool:
        known = lives(self.content)
        return self.age <= STALE_SECONDS if known is None else known

    def __str__(self) -> str:
        holder = {key: self.content.get(key, "unknown") for key in ("pid", "host", "command")}
        return f"process {holder['pid']} on {holder['host']} ({holder['command']})"


def owner(root: Path) -> Owner | None:
    """Return the process that holds the folder, dead or alive; ``None`` if there is none."""
    path = root / LOCK
    try:
        age = abs(_clock(root) - path.stat().st_mtime)
        content = json.loads(whole(path).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        content = {}  # the file is truncated, or is just being written
    return Owner(content if isinstance(content, dict) else {}, age)


def check_free(root: Path) -> None:
    """Check that no sweep is running in a folder, or in one right below it, as for several widths.

    Raises:
        ResultsError: naming its owner.
    """
    for folder in (root, *(path.parent for path in root.glob(f"*/{LOCK}"))):
        there = owner(folder)
        if there is not None and there.alive:
            raise _taken(folder, there)


def _taken(root: Path, there: Owner | None) -> ResultsError:
    return ResultsError(
        f"{root} belongs to a sweep that is running: {there}; wait for it, or choose another folder with --output"
    )


class Lock(Observer):
    """Holds a folder while the block runs.

    Args:
        store: store of the folder, prepared.
        command: command of the owner, for display.
        standing: returns what else to write about a search and its running trials.
    """

    def __init__(
        self,
        store: Store,
        command: str,
        standing: Callable[[Search, Mapping[str, dict[str, Any]]], dict[str, Any]] = lambda search, running: {},
    ) -> None:
        self._standing = standing
        self._path = store.root / LOCK
        self._mine: dict[str, Any] = {
            **described(),
            "token": uuid.uuid4().hex,
            "command": command,
            "started": time.time(),
        }
        self._beaten = 0.0

    def __enter__(self) -> Lock:
        for _ in range(3):
            if self._created():
                return self
            there = owner(self._path.parent)
            if there is not None and there.alive:
                break
            stale = self._path.with_name(f".tmp-{LOCK}-{uuid.uuid4().hex}")
            try:
                os.rename(self._path, stale)
            except FileNotFoundError:
                continue
            remove(stale)
        raise _taken(self._path.parent, there)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Remove the file, unless another sweep has taken over the folder; where that cannot be done, as in a folder
        that has become read-only, the file is stale once this process has ended."""
        there = owner(self._path.parent)
        if there is not None and there.content.get("token") == self._mine["token"]:
            with contextlib.suppress(ResultsError):
                remove(self._path)

    def looked(self, search: Search, running: Mapping[str, dict[str, Any]]) -> None:
        if time.monotonic() - self._beaten >= BEAT_SECONDS:
            done, planned = search.all_counts()
            said = self._standing(search, running)
            self.beat({"done": done, "planned": planned, "running": dict(running)} | said)

    def ended(self, search: Search) -> None:
        self._beaten = -BEAT_SECONDS  # beat now, so that a folder removed since the last beat is noticed
        self.looked(search, {})

    def beat(self, progress: dict[str, Any]) -> None:
        """Touch the file and write the progress of the sweep to it.

        Raises:
            ResultsError: if another sweep has taken over the folder, the file is gone, or it cannot be written.
        """
        there = owner(self._path.parent)
        if there is None:
            raise ResultsError(f"{self._path} is gone: it, or its folder, was removed while the sweep ran")
        if there.content.get("token") not in (self._mine["token"], None):
            raise ResultsError(f"{self._path.parent} was taken over by another sweep: {there}")
        with atomic_file(self._path) as draft:
            draft.write_text(json.dumps(self._mine | {"beat": time.time(), "progress": progress}, indent=1) + "\n")
        self._beaten = time.monotonic()

    def _created(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            raise ResultsError(f"cannot write {self._path}: {reason(error)}") from None
        with os.fdopen(descriptor, "w") as file:
            json.dump(self._mine | {"beat": time.time(), "progress": {}}, file)
        return True


def _clock(root: Path) -> float:
    """Return the modification time that a file written there now gets; this machine's time if none can be written."""
    probe = root / f".tmp-{LOCK}-{uuid.uuid4().hex}"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:
        return time.time()
    return now
