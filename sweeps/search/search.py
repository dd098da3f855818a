"""The learning-rate search of a whole sweep: which trials are needed, and in which order they run.

Batch sizes are searched from the middle outwards, each by :mod:`sweeps.search.study`: the first study brackets around
the optimizer's default, every other one around the learning rate that the studies before it predict. The trials of a
sweep depend neither on the order in which they end nor on where a sweep was interrupted: stored trials are replayed in
the same order. Observers follow a running sweep: the screen, the lock of the folder, the trackers.
"""

import bisect
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult
from sweeps.search.objective import objective_of
from sweeps.search.pruning import settle
from sweeps.search.study import studies_of
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep


class Search:
    """State of the search of a sweep: which trials are planned, running and finished.

    Args:
        sweep: the sweep, with its target resolved.
        finished: stored final results; those at learning rates that the search would not try are used too.

    Attributes:
        objective: what it minimises.
        studies: the search of every study, in order.
        running: cell and learning rate of the trials that run, by trial id.
        workers: number of trials that could run at once when it ran; 0 if nothing was left to run.
    """

    def __init__(self, sweep: Sweep, finished: Iterable[TrialResult] = ()) -> None:
        self.sweep, self.objective = sweep, objective_of(sweep)
        self.studies = studies_of(sweep, self.objective)
        self.running: dict[str, tuple[Cell, float]] = {}
        self.workers = 0
        self._trials: dict[tuple[Cell, float], TrialConfig] = {}
        self._waiting: dict[Cell, dict[float, None]] = {}
        self._queue: list[tuple[tuple[bool, int, int, str], Cell]] = []
        for result in finished:
            if self._asked_for(result):
                self.studies[Cell.of(result.config).study].note(result)
        for study in sorted(self.studies.values(), key=lambda study: len(study.inner)):
            self._put(study.advance())

    def _asked_for(self, result: TrialResult) -> bool:
        """Return whether a trial belongs to this sweep, whatever its learning rate if these are searched."""
        cell, lr = Cell.of(result.config), result.config.lr
        study = self.studies.get(cell.study)
        if study is None or cell.seed not in study.seeds or (study.listed is not None and lr not in study.listed):
            return False
        return self.config(cell, lr).trial_id == result.trial_id

    def next(self, taken: Mapping[str, float] | None = None) -> TrialConfig | None:
        """Return the trial to start now and mark it as running; ``None`` if there is none to start at the moment.

        Trials that find a bracket come first, because other batch sizes wait for it; then large batches before small
        ones, so that the last trials to run are short. In each cell one trial runs first and finds the pruning bound
        while the others wait, unless it has taken more steps than other batch sizes suggest, or nothing else is left to
        run.

        Args:
            taken: steps that the running trials have taken so far, by trial id, as far as known.
        """
        if not self._queue:
            return None
        cell = next((cell for _, cell in self._queue if not self._unbounded(cell, taken or {})), self._queue[0][1])
        guess = math.log(self.studies[cell.study].guess)
        # the best one sets the lowest bound, at which all others end
        lr = min(self._waiting[cell], key=lambda lr: abs(math.log(lr) - guess))
        self._take(cell, lr)
        config = self.config(cell, lr)
        self.running[config.trial_id] = (cell, lr)
        return config

    def add(self, result: TrialResult) -> None:
        """Add a finished trial and plan the trials that its study, and studies that wait for it, need next."""
        self.running.pop(result.trial_id, None)
        cell, lr = Cell.of(result.config), result.config.lr
        if lr in self._waiting.get(cell, {}):
            self._take(cell, lr)
        study = self.studies[cell.study]
        study.note(result)
        self._put(study.advance())

    def give_back(self, config: TrialConfig) -> None:
        """Return a trial that was started and lost to the plan."""
        self._put([self.running.pop(config.trial_id)])

    @property
    def done(self) -> bool:
        """Whether every planned trial has finished and no study needs another."""
        return not self.running and not self._queue

    def best_steps(self, cell: Cell) -> float | None:
        """Return the fewest steps to target in a cell so far; ``None`` if trials train to a budget."""
        return self.studies[cell.study].fewest.get(cell.seed)

    def all_counts(self) -> tuple[int, int]:
        """Return the numbers of finished and of planned trials; more may be planned as trials end."""
        counts = [study.counts for study in self.studies.values()]
        return sum(done for done, _ in counts), sum(planned for _, planned in counts)

    def waiting(self) -> list[TrialConfig]:
        """Return the planned trials that have neither finished nor started."""
        return [self.config(cell, lr) for _, cell in self._queue for lr in self._waiting[cell]]

    def settled(self, cell: Cell) -> list[TrialResult]:
        """Return the results of a cell whose status the pruning rule changes now that the cell is complete."""
        ended = self.studies[cell.study].results.items()
        return settle([result for (_, seed), result in ended if seed == cell.seed], self.sweep.prune_factor)

    def trials(self) -> Iterator[TrialResult]:
        """Iterate over all trials that have ended, cell by cell."""
        for study in self.studies.values():
            for cell in sorted(study.results, key=lambda cell: cell[1]):
                yield study.results[cell]

    def cells(self) -> list[Cell]:
        return [
            Cell(key.optimizer, key.batch_size, seed) for key, study in self.studies.items() for seed in study.seeds
        ]

    def config(self, cell: Cell, lr: float) -> TrialConfig:
        """Return the configuration of the trial of a cell at a learning rate."""
        if (cell, lr) not in self._trials:
            self._trials[cell, lr] = self.sweep.trial_at(cell, lr)
        return self._trials[cell, lr]

    def _put(self, missing: Iterable[tuple[Cell, float]]) -> None:
        """Plan trials."""
        for cell, lr in missing:
            if cell not in self._waiting:
                self._waiting[cell] = {}
                bisect.insort(self._queue, (self._rank(cell), cell))
            self._waiting[cell][lr] = None

    def _take(self, cell: Cell, lr: float) -> None:
        del self._waiting[cell][lr]
        if not self._waiting[cell]:
            del self._waiting[cell]
            del self._queue[bisect.bisect_left(self._queue, (self._rank(cell), cell))]

    def _rank(self, cell: Cell) -> tuple[bool, int, int, str]:
        study = self.studies[cell.study]
        return study.listed is None and cell.seed != study.seeds[0], -cell.batch_size, cell.seed, cell.optimizer

    def _unbounded(self, cell: Cell, taken: Mapping[str, float]) -> bool:
        """Return whether a trial of the cell is running that will probably set the pruning bound for the others."""
        if self.sweep.prune_factor is None or self.best_steps(cell) is not None:
            return False
        most = self.studies[cell.study].most_steps(cell.seed)
        under_way = (trial_id for trial_id, (other, _) in self.running.items() if other == cell)
        return any(taken.get(trial_id, 0.0) <= most for trial_id in under_way)


class Observer:
    """Base class of objects that are notified by the thread that runs a sweep.

    A method that is not overridden does nothing. A method that raises a :class:`cbs.errors.CbsError` ends the sweep
    with that error.
    """

    @property
    def reached(self) -> str | None:
        """Reason, in words, why no further trial starts and the running ones end; ``None`` as long as there is none."""
        return None

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        """Called after the folder was read: ``stored`` are its trials; those that belong to the sweep are in
        ``search``."""

    def began(self, search: Search) -> None:
        """Called before trials start; not called if no trial is missing."""

    def finished(self, result: TrialResult, search: Search) -> None:
        """Called when a trial has ended, is stored, and has been added to ``search``."""

    def looked(self, search: Search, running: Mapping[str, dict[str, Any]]) -> None:
        """Called several times a second while trials run.

        Args:
            search: the search of the sweep.
            running: latest heartbeat of each running trial, by trial id: ``step``, ``value``, ``host``, ``time``.
        """

    def note(self, line: str) -> None:
        """Called with a message for the user."""

    def ended(self, search: Search) -> None:
        """Called once after :meth:`began`, when no trial is running any more for whatever reason."""

    def settled(self, result: TrialResult) -> None:
        """Called when the status of a stored trial has changed because its cell is complete."""


@dataclass
class Limits(Observer):
    """Limits over all parts of a sweep. Once one is reached, no further trial starts and the running ones are ended.

    Attributes:
        deadline: time at which the sweep ends, on the clock of :func:`time.monotonic`.
        examples: number of examples that all trials may take together, including earlier runs of the sweep.
    """

    deadline: float = math.inf
    examples: float = math.inf
    _spent: dict[str, int] = field(default_factory=dict)

    def found(self, stored: Sequence[TrialResult], search: Search) -> None:
        self.add(search.trials())

    def finished(self, result: TrialResult, search: Search) -> None:
        self.add([result])

    def add(self, results: Iterable[TrialResult]) -> None:
        """Count the examples of some trials; each trial counts once."""
        # by trial, as several sweeps of a policy share trials and each shows them again
        for result in results:
            self._spent[result.trial_id] = result.final_examples

    @property
    def spent(self) -> int:
        """Examples of all trials that have ended, whatever their status."""
        return sum(self._spent.values())

    @property
    def reached(self) -> str | None:
        if time.monotonic() >= self.deadline:
            return "the time of --max-time is over"
        if self.spent >= self.examples:
            return f"the {self.examples:,.0f} examples of --max-examples are spent"
        return None
