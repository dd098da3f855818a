"""Write every finished trial of a sweep to each of its trackers once, without holding up the sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cbs.errors import CbsError, ConfigError, ResultsError, reason
from cbs.files import refuse_links
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from sweeps.search.search import Observer, Search
from sweeps.trackers import TRACKERS, Tracker

WRITTEN = "tracked"
"""Folder of a sweep with one file per tracker; each line is a trial written to it, and how and where it ended."""


class Tracking(Observer):
    """Writes trials in a thread of its own, in the order they end; leaving the block waits for the last one.

    A tracker that fails is left out from then on, with a message, and the sweep goes on. Giving the same command again
    writes what is missing.

    Args:
        names: names in :data:`sweeps.trackers.TRACKERS`.
        store: store of the sweep.
        say: called with each message for the user.

    Raises:
        CbsError: if a name is unknown, a package is not installed, or a tracker refuses its settings.
    """

    def __init__(self, names: Sequence[str], store: Store, say: Callable[[str], None]) -> None:
        self._store, self._say = store, say
        self._trackers = {name: self._made(name) for name in names}
        self._written = {name: self._read(name) for name in self._trackers}
        self._thread = ThreadPoolExecutor(1)
        self._under_way: list[Future[None]] = []

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
        for future in self._under_way:
            if not future.cancelled():
                future.result()
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.close()
            except Exception as error:  # noqa: BLE001 - as in _write
                self._leave_out(name, error)
            else:
                self._say(f"{name} has {len(self._written[name])} trials: {tracker.where}")

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        self.add(stored)

    def finished(self, result: TrialResult, search: Search) -> None:
        self.add([result])

    def settled(self, result: TrialResult) -> None:
        self.add([result])

    def add(self, results: Iterable[TrialResult]) -> None:
        """Write the trials that have not yet been written with their present outcome."""
        if self._trackers:
            ended = [(result.trial_id, _ended(result)) for result in results]
            self._under_way += [self._thread.submit(self._write, *trial) for trial in ended]

    def _write(self, trial_id: str, line: str) -> None:
        for name, tracker in list(self._trackers.items()):
            if line in self._written[name]:
                continue
            try:
                tracker.write(self._store.load(trial_id))
                with open(self._file(name), "a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except Exception as error:  # noqa: BLE001 - an error in another program is no reason to stop training
                self._leave_out(name, error)
            else:
                self._written[name].add(line)

    def _leave_out(self, name: str, error: Exception) -> None:
        del self._trackers[name]
        self._say(f"{name} is left out from now on: {type(error).__name__}: {reason(error)}")

    def _made(self, name: str) -> Tracker:
        kind = TRACKERS[name]
        refuse_links(self._store.root, self._store.root / kind.files)
        try:
            return kind(self._store.root)
        except CbsError:
            raise
        except Exception as error:
            raise ConfigError(f"--log {name} cannot be written: {type(error).__name__}: {reason(error)}") from error

    def _file(self, name: str) -> Path:
        return self._store.root / WRITTEN / f"{name}.txt"

    def _read(self, name: str) -> set[str]:
        file = self._file(name)
        refuse_links(self._store.root, file)
        try:
            file.parent.mkdir(exist_ok=True)
            return set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set()
        except (OSError, UnicodeDecodeError) as error:
            raise ResultsError(f"cannot read {file}, which lists what {name} has: {reason(error)}; remove it") from None


def _ended(result: TrialResult) -> str:
    """Return a line that identifies the outcome; the same trial run with other code gives another line."""
    value = result.evaluations[-1].value if result.evaluations else None
    return f"{result.trial_id} {result.status} {result.final_step} {value!r}"
