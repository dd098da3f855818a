"""Tell running trials their pruning bound through a file in the sweep's folder, which every node can read."""

import json
import time
from pathlib import Path

from cbs.files import atomic_file
from cbs.trial.record import TrialResult
from cbs.trial.store import Store, remove
from sweeps.search.observer import Observer
from sweeps.search.search import Search
from sweeps.spec.axes import Cell

BOUNDS = "bounds.json"
"""File that maps trial id to the fewest steps to target of its cell, for trials whose cell improved while they ran."""

LOOK_SECONDS = 0.5  # Shortest time between two reads of the file by a trial


class Bounds(Observer):
    """The driver's side: tells the running trials of a cell when its fewest steps to target have become fewer."""

    def __init__(self, store: Store) -> None:
        self._path = store.root / BOUNDS
        self._told: dict[str, float] = {}
        remove(self._path)

    def finished(self, result: TrialResult, search: Search) -> None:
        """Write the new bound if the trial improved its cell; see the base class.

        Raises:
            ResultsError: if the file cannot be written.
        """
        cell, steps = Cell.of(result.config), result.steps_to_target
        if steps is None or steps != search.best_steps(cell):
            return
        better = {trial_id: steps for trial_id, (other, _) in search.running.items() if other == cell}
        if better:
            self._told = {key: value for key, value in self._told.items() if key in search.running} | better
            with atomic_file(self._path) as draft:
                draft.write_text(json.dumps(self._told))

    def ended(self, search: Search) -> None:
        remove(self._path)


class TrialBound:
    """The side of one trial: reads its pruning bound.

    Args:
        store: folder of the sweep.
        trial_id: id of the trial.
        steps: fewest steps of its cell when it was started, if any.
    """

    def __init__(self, store: str, trial_id: str, steps: float | None) -> None:
        self._path, self._trial_id, self._steps = Path(store) / BOUNDS, trial_id, steps
        self._looked, self._seen = -LOOK_SECONDS, 0

    @property
    def steps(self) -> float | None:
        """Fewest steps of the cell, as far as known to this process."""
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
        ):  # it does not exist, or is being replaced on a slow file system
            return
        self._seen = changed
        if isinstance(steps, int | float):
            self._steps = float(steps)
