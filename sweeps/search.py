"""Which trial next: the learning-rate search of every study, and the order in which trials run.

A study starts with a window of learning rates (all of them where the user gave a list) at every seed. When those are
done and the best one, chosen over seeds, lies on the edge of what was tried, the next learning rate on that side joins,
until the best one has a worse one on either side. The plan is a function of finished trials alone, so an interrupted
sweep that is run again arrives at the same trials as an undisturbed one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from cbs.config import TrialConfig
from cbs.lr_choice import at_edges, best_lr, censored
from cbs.record import TrialResult
from sweeps.pruning import settle
from sweeps.spec import Cell, Study, Sweep

WINDOW = 3
"""Learning rates a study starts with: the middle of the optimizer's grid and its two neighbours."""

EXTENSION = 6
"""How many learning rates beyond either end of the optimizer's own grid a search may go."""


class Search:
    """The state of a sweep: what is planned, running and finished.

    Args:
        sweep: the sweep, its target resolved.
        finished: final results that are stored already.
    """

    def __init__(self, sweep: Sweep, finished: Iterable[TrialResult] = ()) -> None:
        self.sweep = sweep
        self.lattices = {choice.name: lattice(sweep, choice.name) for choice in sweep.optimizers}
        self.planned: dict[Study, tuple[float, ...]] = {}
        self.results: dict[Cell, dict[float, TrialResult]] = {cell: {} for cell in self._cells()}
        self.running: dict[str, tuple[Cell, float]] = {}
        self._trials: dict[tuple[Cell, float], TrialConfig] = {}
        self._guesses: dict[Study, float] = {}
        known = {result.trial_id: result for result in finished}
        for study in sweep.studies():
            self._load(study, known)
        for study in sweep.studies():
            self._extend(study)

    def next(self) -> TrialConfig | None:
        """The trial to start now, counted as running from here on; ``None`` when there is none to start at the moment.

        Trials that find the bound of their cell come first, and large batches before small ones, so that the last
        trials to run are short.
        """
        choice = min(self._waiting(), key=self._priority, default=None)
        if choice is None:
            return None
        config = self._config(*choice)
        self.running[config.trial_id] = choice
        return config

    def add(self, result: TrialResult) -> None:
        """Take in a finished trial; may extend its study."""
        config = result.config
        self.running.pop(result.trial_id, None)
        cell = Cell.of(config)
        self.results[cell][config.lr] = result
        self._guesses.clear()
        self._extend(cell.study)

    def give_back(self, config: TrialConfig) -> None:
        """Take back a trial that was started and lost; it is planned again."""
        del self.running[config.trial_id]

    @property
    def done(self) -> bool:
        """Whether every planned trial is finished and no study has a further learning rate to try."""
        return not self.running and next(iter(self._waiting()), None) is None

    def best_steps(self, cell: Cell) -> float | None:
        """Fewest steps to target in a cell so far."""
        return min(
            (r.steps_to_target for r in self.results[cell].values() if r.steps_to_target is not None), default=None
        )

    def best(self, study: Study) -> tuple[float, float] | None:
        """Best learning rate of a study over the seeds so far, and its geometric mean of steps to target."""
        lrs = self.planned[study]
        table = self.table(study)
        row = best_lr(table)
        if row is None:
            return None
        reached = table[row][np.isfinite(table[row])]
        return lrs[row], float(np.exp(np.log(reached).mean()))

    def table(self, study: Study) -> np.ndarray:
        """Steps to target, shape ``[learning rates, seeds]``, after the pruning rule; NaN where not reached."""
        results = [[self.results[cell].get(lr) for cell in self._cells_of(study)] for lr in self.planned[study]]
        steps = [[getattr(result, "steps_to_target", None) for result in row] for row in results]
        return censored(np.array(steps, dtype=float), self.sweep.prune_factor)

    def counts(self, study: Study) -> tuple[int, int]:
        """Finished and planned trials of a study."""
        finished = sum(lr in self.results[cell] for cell in self._cells_of(study) for lr in self.planned[study])
        return finished, len(self.planned[study]) * len(self.sweep.seeds)

    def waiting(self) -> list[TrialConfig]:
        """Planned trials that have neither finished nor started."""
        return [self._config(cell, lr) for cell, lr in self._waiting()]

    def settled(self, cell: Cell) -> list[TrialResult]:
        """Results of a cell whose status the pruning rule changes now that the cell is complete."""
        return settle(list(self.results[cell].values()), self.sweep.prune_factor)

    def cells(self) -> list[Cell]:
        return list(self._cells())

    def _cells(self) -> Iterable[Cell]:
        return (Cell(s.optimizer, s.batch_size, seed) for s in self.sweep.studies() for seed in self.sweep.seeds)

    def _cells_of(self, study: Study) -> list[Cell]:
        return [Cell(study.optimizer, study.batch_size, seed) for seed in self.sweep.seeds]

    def _config(self, cell: Cell, lr: float) -> TrialConfig:
        if (cell, lr) not in self._trials:
            self._trials[cell, lr] = self.sweep.trial(cell, lr)
        return self._trials[cell, lr]

    def _load(self, study: Study, known: dict[str, TrialResult]) -> None:
        """Take in stored trials; learning rates already tried beyond the first window stay in the plan."""
        grid = self.lattices[study.optimizer]
        tried = set(start_window(self.sweep, study.optimizer))
        for cell in self._cells_of(study):
            for lr in grid:
                result = known.get(self._config(cell, lr).trial_id) if known else None
                if result is not None:
                    self.results[cell][lr] = result
                    tried.add(lr)
        low, high = grid.index(min(tried)), grid.index(max(tried))
        self.planned[study] = grid[low : high + 1]

    def _extend(self, study: Study) -> None:
        while self.sweep.lrs is None and self.counts(study)[0] == self.counts(study)[1]:
            grid, tried = self.lattices[study.optimizer], self.planned[study]
            side = edge(self.table(study), self._last_distance(study))
            low, high = grid.index(tried[0]), grid.index(tried[-1])
            if side < 0 and low > 0:
                self.planned[study] = grid[low - 1 : high + 1]
            elif side > 0 and high + 1 < len(grid):
                self.planned[study] = grid[low : high + 2]
            else:
                return

    def _last_distance(self, study: Study) -> np.ndarray:
        """Distance to the target at the end, mean over seeds, shape ``[learning rates]``; infinite where not finite."""
        rows = []
        for lr in self.planned[study]:
            results = [self.results[cell].get(lr) for cell in self._cells_of(study)]
            last = [
                r.config.target.distance(r.evaluations[-1].value) if r and r.evaluations else math.inf for r in results
            ]
            rows.append(np.mean(last))
        distance = np.array(rows, dtype=float)
        return np.where(np.isfinite(distance), distance, np.inf)

    def _waiting(self) -> Iterable[tuple[Cell, float]]:
        started = set(self.running.values())
        for study in self.sweep.studies():
            for cell in self._cells_of(study):
                for lr in self.planned[study]:
                    if lr not in self.results[cell] and (cell, lr) not in started:
                        yield cell, lr

    def _priority(self, choice: tuple[Cell, float]) -> tuple[float, ...]:
        cell, lr = choice
        running = [other for other, _ in self.running.values()]
        # One trial finds the bound of its cell, and the learning rate with which the other seeds start.
        unknown = cell in running and self.best_steps(cell) is None
        first = any(other.study == cell.study for other in running) and self.best(cell.study) is None
        return (unknown, first, -cell.batch_size, cell.seed, abs(math.log(lr / self._guess(cell.study))), lr)

    def _guess(self, study: Study) -> float:
        """The learning rate most likely to be best: of this study, else of the nearest batch size, else the middle."""
        if study not in self._guesses:
            self._guesses[study] = self._nearest_best(study)
        return self._guesses[study]

    def _nearest_best(self, study: Study) -> float:
        optimizer, size = study.optimizer, math.log(study.batch_size)
        for other in sorted(
            (Study(optimizer, batch_size) for batch_size in self.sweep.batch_sizes),
            key=lambda other: abs(math.log(other.batch_size) - size),
        ):
            best = self.best(other)
            if best is not None:
                return best[0]
        return middle(self.sweep.lr_grid(optimizer))


def middle(grid: Sequence[float]) -> float:
    """The middle of a grid; the upper of the two where there are two."""
    return grid[len(grid) // 2]


def start_window(sweep: Sweep, optimizer: str) -> tuple[float, ...]:
    """Learning rates a study starts with."""
    if sweep.lrs is not None:
        return sweep.lrs
    grid = sweep.lr_grid(optimizer)
    first = max(0, len(grid) // 2 - WINDOW // 2)
    return grid[first : first + WINDOW]


def lattice(sweep: Sweep, optimizer: str) -> tuple[float, ...]:
    """Every learning rate a search may try: the grid, and its continuation by the same ratio at both ends."""
    grid = sweep.lr_grid(optimizer)
    if sweep.lrs is not None or len(grid) < 2:
        return grid
    below, above = grid[1] / grid[0], grid[-1] / grid[-2]
    lower = [_clean(grid[0] / below**k) for k in range(EXTENSION, 0, -1)]
    return (*lower, *grid, *(_clean(grid[-1] * above**k) for k in range(1, EXTENSION + 1)))


def edge(steps: np.ndarray, last_distance: np.ndarray) -> int:
    """Whether the best learning rate is on the lower (-1) or upper (+1) edge of what was tried, or interior (0).

    Where nothing reached the target, the learning rate that ended nearest to it counts as best, and where nothing ended
    anywhere (all diverged) the lower edge.

    Args:
        steps: shape ``[learning rates, seeds]``; NaN where the target was not reached.
        last_distance: shape ``[learning rates]``, distance to the target at the end.
    """
    row = best_lr(steps)
    if row is None:
        row = int(np.argmin(last_distance)) if np.isfinite(last_distance).any() else 0
    lowest, highest = at_edges(row, [True] * len(steps))
    return -1 if lowest else 1 if highest else 0


def _clean(lr: float) -> float:
    return float(f"{lr:.6g}")
