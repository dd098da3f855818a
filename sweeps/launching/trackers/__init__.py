"""Experiment trackers that a sweep writes its trials to as well, one run each, once, and without holding up the sweep:
their base class, and the content of a trial that they write.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cbs.errors import CbsError, ConfigError, ResultsError, reason
from cbs.files import refuse_links
from cbs.registry import Registry
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from sweeps.search.search import Observer, Search


class Tracker(ABC):
    """Writes every finished trial as a run, named and identified by the trial's id.

    Args:
        folder: folder of the sweep, which exists. A tracker that writes files uses a subfolder of its own, unless its
            own settings say otherwise.

    Attributes:
        files: name of this subfolder.

    Raises:
        MissingDependencyError: if its package is not installed.
    """

    files: str

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def write(self, result: TrialResult) -> None:
        """Write a trial as a whole run; may raise any error of the tracker's package."""

    def close(self) -> None:  # noqa: B027 - most packages have written a run when its last call returns
        """Wait until every run is on disk or sent; called once, after the last trial."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where the user finds the runs, in a few words."""


def called(folder: Path) -> str:
    """Return the name of a sweep: that of its folder. For one of several widths, the name of the parent folder
    comes first, because other sweeps over widths have the same names."""
    here = folder.resolve()
    return f"{here.parent.name}-{here.name}" if re.fullmatch(r"width-\d+", here.name) else here.name


def settings(result: TrialResult) -> dict[str, Any]:
    """Return the configuration of a trial and its fingerprint as single values by name: ``optimizer.name``, ``lr``."""
    stated = dict(_flat("stated.", result.stated))
    return {"fingerprint": result.config.fingerprint, **dict(_flat("", result.config.to_dict())), **stated}


def outcome(result: TrialResult) -> dict[str, float]:
    """Return the final numbers of a trial: steps and examples to the target if it was reached, and the last step."""
    metrics = {
        "steps_to_target": result.steps_to_target,
        "examples_to_target": result.examples_to_target,
        "final_step": result.final_step,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def curve(result: TrialResult) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield step and values of every evaluation; values that are not finite are left out, as trackers refuse them."""
    metric = result.config.target.metric
    for point in result.evaluations:
        values = {
            "train_loss": point.train_loss,
            "lr": point.lr,
            "examples": float(point.examples),
            metric: point.value,  # last, as the metric may have one of these names
        }
        yield point.step, {name: value for name, value in values.items() if math.isfinite(value)}


def _flat(above: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{above}{name}.", value)
        elif value is not None:
            yield above + name, value if isinstance(value, bool | int | float | str) else str(value)


TRACKERS: Registry[type[Tracker]] = Registry("tracker", "sweeps.launching.trackers", derived_from=Tracker)

__all__ = ["TRACKERS", "Tracker"]


WRITTEN = "tracked"
"""Folder of a sweep with one file per tracker; each line is a trial written to it, and how and where it ended."""


class Tracking(Observer):
    """Writes trials in a thread of its own, in the order they end; leaving the block waits for the last one.

    A tracker that fails is left out from then on, with a message, and the sweep goes on. Giving the same command again
    writes what is missing.

    Args:
        names: names in :data:`sweeps.launching.trackers.TRACKERS`.
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
