"""What a running trial must beat, told through the sweep's folder: the one place that all nodes see in any case."""

from __future__ import annotations

import json
import time
from pathlib import Path

from cbs.files import atomic_file
from cbs.trial.store import Store, remove

BOUNDS = "bounds.json"
"""The file: trial id -> fewest steps to target of its cell, of trials whose cell became better while they ran."""

LOOK_SECONDS = 0.5
"""Least time between two looks of a trial at the file."""


class Bounds:
    """The driver's side. Keep it while trials run; :meth:`close` removes the file."""

    def __init__(self, store: Store) -> None:
        self._path = store.root / BOUNDS
        self._told: dict[str, float] = {}
        self.close()

    def tell(self, steps: dict[str, float]) -> None:
        """Tell running trials, by their ids, the fewest steps of their cells.

        Raises:
            ResultsError: if the file cannot be written.
        """
        self._told |= steps
        with atomic_file(self._path) as draft:
            draft.write_text(json.dumps(self._told))

    def forget(self, trial_id: str) -> None:
        """A trial is over; the next :meth:`tell` leaves it out."""
        self._told.pop(trial_id, None)

    def close(self) -> None:
        remove(self._path)


class TrialBound:
    """The side of one trial.

    Args:
        store: folder of the sweep.
        trial_id: whose.
        steps: fewest steps of its cell when it was started, if any.
    """

    def __init__(self, store: str, trial_id: str, steps: float | None) -> None:
        self._path, self._trial_id, self._steps = Path(store) / BOUNDS, trial_id, steps
        self._looked, self._seen = -LOOK_SECONDS, 0

    @property
    def steps(self) -> float | None:
        """Fewest steps of the cell, as far as is known here."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._steps

    def _look(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._seen:
                return
            steps = json.loads(self._path.read_text()).get(self._trial_id)
        except (
            OSError,
            ValueError,
            AttributeError,
            RecursionError,
        ):  # not there, or being replaced on a file system that is slow
            return
        self._seen = changed
        if isinstance(steps, int | float):
            self._steps = float(steps)
