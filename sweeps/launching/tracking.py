"""The trackers of one sweep: every finished trial goes to each of them once, beside the sweep and not in its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cbs.errors import CbsError, ConfigError, ResultsError, reason
from cbs.files import refuse_links
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from sweeps.search.observer import Observer
from sweeps.search.search import Search
from sweeps.trackers import TRACKERS, Tracker

WRITTEN = "tracked"
"""Folder of a sweep with a file for each tracker: the trials it has, how and where they ended, a line each."""


class Tracking(Observer):
    """Writes trials in a thread of its own, in the order they come; leaving the block waits for the last.

    A tracker that fails is left out from then on, and that is said: a sweep does not end for its sake, and the same
    command again writes what is missing.

    Args:
        names: in :data:`sweeps.trackers.TRACKERS`.
        store: the sweep.
        say: tells a person.

    Raises:
        CbsError: if a name is not known, a package is not installed, or a tracker refuses what it is set to.
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
        for name, tracker in self._trackers.items():
            self._say(f"{name} has {len(self._written[name])} trials: {tracker.where}")

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        self.add(stored)

    def finished(self, result: TrialResult, search: Search) -> None:
        self.add([result])

    def settled(self, result: TrialResult) -> None:
        self.add([result])

    def add(self, results: Iterable[TrialResult]) -> None:
        """Write those that have not been written yet as they ended."""
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
            except Exception as error:  # noqa: BLE001 - whatever another program raises is no reason to stop training
                del self._trackers[name]
                self._say(f"{name} is left out from now on: {type(error).__name__}: {reason(error)}")
            else:
                self._written[name].add(line)

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
            raise ResultsError(f"cannot read {file}, which says what {name} has: {reason(error)}; remove it") from None


def _ended(result: TrialResult) -> str:
    """A line that another run of the same trial, of other code, does not have."""
    value = result.evaluations[-1].value if result.evaluations else None
    return f"{result.trial_id} {result.status} {result.final_step} {value!r}"
