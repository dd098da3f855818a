"""The learning-rate search of a whole sweep: which trials are needed, and in which order they run.

Batch sizes are searched from the middle outwards. The first study brackets around the optimizer's default; every other
one around the learning rate that :mod:`cbs.trial.lr_choice` predicts from the studies before it. Which trials a study
needs follows from its finished trials alone (:mod:`sweeps.search.bracket`), and it is asked again only when all trials
it asked for have finished. The trials of a sweep therefore depend neither on the order in which they end nor on where a
sweep was interrupted: stored trials are replayed in the same order.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from cbs.trial.config import TrialConfig
from cbs.trial.lr_choice import Expected, best_lr, censored, expected
from cbs.trial.record import TrialResult
from sweeps.search import bracket
from sweeps.search.bracket import Rules, TrialRequest
from sweeps.search.lattice import OCTAVE, Lattice, middle
from sweeps.search.objective import objective_of
from sweeps.search.pruning import settle
from sweeps.search.study_progress import START, StudyProgress, doubted, inner, outcomes
from sweeps.search.trial_table import SEED_DEVIATION
from sweeps.search.warm_start import expected_from
from sweeps.spec.cell import Cell, StudyKey
from sweeps.spec.prior import Prior
from sweeps.spec.spec import Sweep

FIRST = 3
"""Number of trials with which every study begins."""


class Search:
    """State of the search of a sweep: which trials are planned, running and finished.

    Args:
        sweep: the sweep, with its target resolved.
        finished: stored final results; those at learning rates that the search would not try are used too.

    Attributes:
        workers: number of trials that could run at once when it ran; 0 if nothing was left to run.
    """

    def __init__(self, sweep: Sweep, finished: Iterable[TrialResult] = ()) -> None:
        self.sweep = sweep
        self.objective = objective_of(sweep)
        resolution = sweep.search.lr_resolution
        self.rules = Rules(resolution=resolution, prune_factor=sweep.prune_factor, objective=self.objective)
        self.results: dict[Cell, dict[float, TrialResult]] = {cell: {} for cell in self.cells()}
        self.running: dict[str, tuple[Cell, float]] = {}
        self.workers = 0
        self._lattices = {optimizer: Lattice(sweep.lr_grid(optimizer)) for optimizer in sweep.choices}
        self._courses = {study: StudyProgress(study, inner(study, sweep)) for study in sweep.studies()}
        self._trials: dict[tuple[Cell, float], TrialConfig] = {}
        self._waiting: dict[Cell, dict[float, None]] = {}
        self._queue: list[tuple[tuple[bool, int, int, str], Cell]] = []
        self._steps: dict[Cell, float] = {}
        self._done: dict[StudyKey, int] = dict.fromkeys(self._courses, 0)
        self._best: dict[StudyKey, tuple[float, float] | None] = {}
        self._costs: dict[StudyKey, dict[float, tuple[int, float]]] = {study: {} for study in self._courses}
        for result in finished:
            self._load(result)
        for course in sorted(self._courses.values(), key=lambda course: len(course.inner)):
            self._advance(course)

    def next(self, taken: Mapping[str, float] | None = None) -> TrialConfig | None:
        """Return the trial to start now and mark it as running; ``None`` if there is none to start at the moment.

        Trials that find a bracket come first, because other batch sizes wait for it; then large batches before small
        ones, so that the last trials to run are short. In each cell one trial runs first and finds the pruning bound
        while the others wait, unless it has taken more steps than other batch sizes suggest, or nothing else is left to
        run.

        Args:
            taken: steps that the running trials have taken so far, by trial id, as far as known.
        """
        cell = next((cell for _, cell in self._queue if not self._unbounded(cell, taken or {})), None)
        if cell is None:
            if not self._queue:
                return None
            cell = self._queue[0][1]
        guess = math.log(self._guess(cell.study))
        lr = min(self._waiting[cell], key=lambda lr: abs(math.log(lr) - guess))
        self._take(cell, lr)
        config = self.config(cell, lr)
        self.running[config.trial_id] = (cell, lr)
        return config

    def add(self, result: TrialResult) -> None:
        """Add a finished trial and plan the trials that its study, and studies that wait for it, need next."""
        self.running.pop(result.trial_id, None)
        cell, lr = Cell.of(result.config), result.config.lr
        self._note(cell, result)
        course = self._courses[cell.study]
        place = (lr, cell.seed)
        if place in course.missing:
            course.missing.remove(place)
            course.seen[place] = result
            if lr in self._waiting.get(cell, {}):
                self._take(cell, lr)
        self._advance(course)

    def give_back(self, config: TrialConfig) -> None:
        """Return a trial that was started and lost to the plan."""
        self._put(*self.running.pop(config.trial_id))

    @property
    def done(self) -> bool:
        """Whether every planned trial has finished and no study needs another."""
        return not self.running and not self._queue

    def best_steps(self, cell: Cell) -> float | None:
        """Return the fewest steps to target in a cell so far; ``None`` if trials train to a budget."""
        return self._steps.get(cell)

    def best(self, study: StudyKey) -> tuple[float, float] | None:
        """Return the best learning rate of a study over the seeds so far, and the geometric mean of its costs.

        Costs are steps to target, or another cost if trials train to a budget (:mod:`sweeps.search.objective`).
        ``None`` if no trial has a cost.
        """
        if study not in self._best:
            lrs, table = self.lrs(study), self.table(study)
            ran = np.array([[lr in self.results[cell] for cell in self._cells_of(study)] for lr in lrs])
            row = best_lr(table, ran) if lrs else None
            reached = np.array([]) if row is None else table[row][np.isfinite(table[row])]
            self._best[study] = None if row is None else (lrs[row], float(np.exp(np.log(reached).mean())))
        return self._best[study]

    def lrs(self, study: StudyKey) -> tuple[float, ...]:
        """Return the learning rates of a study that are planned or have a trial."""
        there = {lr for cell in self._cells_of(study) for lr in self.results[cell]}
        return tuple(sorted(there | {lr for lr, _ in self._courses[study].why}))

    def table(self, study: StudyKey) -> np.ndarray:
        """Return the costs of a study after the pruning rule, shape ``[learning rates, seeds]``.

        NaN where a trial has no cost or has not run.
        """
        costs = [
            [
                math.nan if (result := self.results[cell].get(lr)) is None else self.objective.cost(result)
                for cell in self._cells_of(study)
            ]
            for lr in self.lrs(study)
        ]
        return censored(np.array(costs, dtype=float), self.sweep.prune_factor)

    def interior(self, study: StudyKey) -> bool:
        """Return whether the best learning rate has a worse one on either side, or other batch sizes are believed."""
        best, lrs, course = self.best(study), self.lrs(study), self._courses[study]
        believed = course.settled and self.sweep.believes(study)
        return best is not None and (lrs[0] < best[0] < lrs[-1] or believed)

    def why(self, study: StudyKey) -> dict[tuple[float, int], str]:
        """Return the reason for every requested trial, by learning rate and seed, in the order of the requests."""
        return self._courses[study].why

    def counts(self, study: StudyKey) -> tuple[int, int]:
        """Return the number of finished and of planned trials of a study; more may be planned as trials end."""
        return self._done[study], len(self._courses[study].why)

    def all_counts(self) -> tuple[int, int]:
        """Return :meth:`counts` summed over the studies."""
        counts = [self.counts(study) for study in self.sweep.studies()]
        return sum(done for done, _ in counts), sum(planned for _, planned in counts)

    def waiting(self) -> list[TrialConfig]:
        """Return the planned trials that have neither finished nor started."""
        return [self.config(cell, lr) for _, cell in self._queue for lr in self._waiting[cell]]

    def settled(self, cell: Cell) -> list[TrialResult]:
        """Return the results of a cell whose status the pruning rule changes now that the cell is complete."""
        return settle(list(self.results[cell].values()), self.sweep.prune_factor)

    def trials(self) -> Iterator[TrialResult]:
        """Iterate over all trials that have ended."""
        return (result for held in self.results.values() for result in held.values())

    def cells(self) -> list[Cell]:
        return [cell for study in self.sweep.studies() for cell in self._cells_of(study)]

    def _cells_of(self, study: StudyKey) -> list[Cell]:
        return [Cell(study.optimizer, study.batch_size, seed) for seed in self.sweep.axes.seeds_of(study)]

    def config(self, cell: Cell, lr: float) -> TrialConfig:
        """Return the configuration of the trial of a cell at a learning rate."""
        if (cell, lr) not in self._trials:
            self._trials[cell, lr] = self.sweep.trial_at(cell, lr)
        return self._trials[cell, lr]

    def _load(self, result: TrialResult) -> None:
        """Add a stored trial if it belongs to this sweep, whatever its learning rate."""
        cell = Cell.of(result.config)
        if cell not in self.results:
            return
        if self.sweep.exhaustive and result.config.lr not in self.sweep.listed_lrs(cell.study):
            return
        if self.config(cell, result.config.lr).trial_id == result.trial_id:
            self._note(cell, result)

    def _note(self, cell: Cell, result: TrialResult) -> None:
        study, lr = cell.study, result.config.lr
        if (lr, cell.seed) in self._courses[study].why and lr not in self.results[cell]:
            self._done[study] += 1
        self.results[cell][lr] = result
        self._best.pop(study, None)
        if result.steps_to_target is not None:
            self._steps[cell] = min(result.steps_to_target, self._steps.get(cell, math.inf))
        if math.isfinite(cost := self.objective.cost(result)):
            count, logs = self._costs[study].get(lr, (0, 0.0))
            self._costs[study][lr] = count + 1, logs + math.log(max(cost, 1e-300))

    def _advance(self, course: StudyProgress) -> None:
        """Request the trials that a study needs until at least one of them has no stored result."""
        while not course.missing:
            asks = self._asks(course)
            self._settle(course, asks)
            for ask in asks:
                place, cell = (ask.lr, ask.seed), Cell(course.study.optimizer, course.study.batch_size, ask.seed)
                course.why[place] = ask.why
                result = self.results[cell].get(ask.lr)
                if result is None:
                    course.missing.add(place)
                    self._put(cell, ask.lr)
                else:
                    course.seen[place] = result
                    self._done[course.study] += 1
            if not asks:
                return

    def _asks(self, course: StudyProgress) -> list[TrialRequest]:
        study, seeds = course.study, self.sweep.axes.seeds_of(course.study)
        if self.sweep.exhaustive:
            lrs = () if course.started else self.sweep.listed_lrs(study)
            course.started = True
            return [TrialRequest(lr, seed, "on the grid") for lr in lrs for seed in seeds]
        if not course.started:
            if not all(self._courses[inner].settled for inner in course.inner):
                return []
            course.started = True
            return self._start(course)
        lattice = self._lattices[study.optimizer]
        rules = self._rules(course)
        asks = bracket.needed(outcomes(course.seen, rules), seeds, lattice, rules)
        if not asks and len(self._stored(study)) > len(course.seen):
            # trials that this search would not have requested can show a better learning rate
            course.seen = self._stored(study) | course.seen
            asks = bracket.needed(outcomes(course.seen, rules), seeds, lattice, rules)
        return asks or self._doubted(course)

    def _start(self, course: StudyProgress) -> list[TrialRequest]:
        """Request the first three trials: at the expected best learning rate, and a factor of 2 on either side."""
        study, lattice = course.study, self._lattices[course.study.optimizer]
        first, *_ = seeds = self.sweep.axes.seeds_of(study)
        law = self._law(course)
        position = lattice.nearest(law.log_lr, START) if law else 0
        stored = self._stored(study)
        rules = self._rules(course)
        mine = outcomes({place: result for place, result in stored.items() if place[1] == first}, rules)
        if (lattice.lr(position), first) not in mine and mine and bracket.bracketed(mine, [first], lattice, rules):
            course.seen = stored
            return bracket.needed(outcomes(stored, rules), seeds, lattice, rules)
        why = "the optimizer's default: nothing is known yet"
        if law:
            why = f"{self._sources(course)} predict {math.exp(law.log_lr):.3g} within a factor of "
            why += f"{math.exp(law.deviation):.2g}"
        beside = "a factor of 2 on either side of the expected best"
        here = math.log(lattice.lr(position))
        sides: tuple[int, ...] = (1, -1)
        if law is not None and rules.believes:
            alone = rules.believed(here, law, SEED_DEVIATION, len(seeds))
            sides = () if alone else (law.side(here),)
        return [
            TrialRequest(lattice.lr(position), first, why),
            *(TrialRequest(lattice.lr(position + side * OCTAVE), first, beside) for side in sides),
        ]

    def _law(self, course: StudyProgress) -> Expected | None:
        known = [
            (math.log(study.batch_size), *optimum)
            for study in course.inner
            if (optimum := self._courses[study].optimum) is not None
        ]
        at, prior = math.log(course.study.batch_size), self._prior(course)
        if prior is not None:
            return expected_from(prior, at, known)
        return expected(at, *zip(*known, strict=True)) if known else None

    def _prior(self, course: StudyProgress) -> Prior | None:
        return self.sweep.search.warm_start.get(str(self.sweep.choices[course.study.optimizer]))

    def _sources(self, course: StudyProgress) -> str:
        """Name the sources of the prediction of :meth:`_law`."""
        prior = self._prior(course)
        own = any(self._courses[study].optimum is not None for study in course.inner)
        origins = ["the batch sizes tried"] if own else []
        return " and ".join(origins if prior is None else [*origins, f"the results in {prior.source}"])

    def _settle(self, course: StudyProgress, asks: list[TrialRequest]) -> None:
        """Note the optimum once the first seed is bracketed, and start the studies that wait for it."""
        if course.settled or not course.started or self.sweep.exhaustive:
            return
        first, lattice = [self.sweep.axes.seeds_of(course.study)[0]], self._lattices[course.study.optimizer]
        rules = self._rules(course)
        mine = outcomes({place: result for place, result in course.seen.items() if place[1] == first[0]}, rules)
        if not mine or (asks and not bracket.bracketed(mine, first, lattice, rules)):
            return
        course.settled = True
        # what other batch sizes said is no evidence of its own
        course.optimum = bracket.optimum(mine, first, lattice, rules) if len(mine) > 1 else None
        costs = [end.cost for end in mine.values() if math.isfinite(end.cost)]
        course.level = math.log(min(costs)) if costs else None
        for other in self._courses.values():
            waited = not other.started and course.study in other.inner
            if waited or (other.started and self._larger(other) is course):
                self._advance(other)

    def _larger(self, course: StudyProgress) -> StudyProgress | None:
        """Return the course of the next larger batch size of the same optimizer."""
        size, optimizer = course.study.batch_size, course.study.optimizer
        mine = (other for other in self._courses.values() if other.study.optimizer == optimizer)
        return next((other for other in mine if other.study.batch_size > size), None)

    def _doubted(self, course: StudyProgress) -> list[TrialRequest]:
        larger = self._larger(course)
        if larger is None or self.objective.judged is None:
            return []
        lattice = self._lattices[course.study.optimizer]
        return doubted(course, larger, lattice, self.sweep.axes.seeds_of(course.study)[0])

    def _stored(self, study: StudyKey) -> dict[tuple[float, int], TrialResult]:
        return {(lr, cell.seed): result for cell in self._cells_of(study) for lr, result in self.results[cell].items()}

    def _rules(self, course: StudyProgress) -> Rules:
        """Return the rules of a study, with the unit of costs taken from its first trials."""
        first = [course.seen[place] for place in itertools.islice(course.why, FIRST) if place in course.seen]
        cell = Cell(course.study.optimizer, course.study.batch_size, self.sweep.axes.seeds_of(course.study)[0])
        # more steps than other batch sizes allow at the best learning rate: they are wrong about this one
        too_slow = self._steps.get(cell, 0.0) > self._most_steps(cell)
        believes = self.sweep.believes(course.study) and not too_slow
        objective, law = self.objective.scaled(first), self._law(course)
        return replace(self.rules, objective=objective, expected=law, believes=believes)

    def _put(self, cell: Cell, lr: float) -> None:
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
        later = not self.sweep.exhaustive and cell.seed != self.sweep.axes.seeds_of(cell.study)[0]
        return later, -cell.batch_size, cell.seed, cell.optimizer

    def _unbounded(self, cell: Cell, taken: Mapping[str, float]) -> bool:
        """Return whether a trial of the cell is running that will probably set the pruning bound for the others."""
        if self.sweep.prune_factor is None:
            return False
        there = [trial_id for trial_id, (other, _) in self.running.items() if other == cell]
        if cell in self._steps or not there:
            return False
        most = self._most_steps(cell)
        return any(taken.get(trial_id, 0.0) <= most for trial_id in there)

    def _most_steps(self, cell: Cell) -> float:
        """Return the number of steps beyond which a trial is not the best of its cell, judged by other batch sizes.

        At its best learning rate a larger batch takes no more steps, and a smaller one no more examples.
        """
        known = (
            steps * max(1.0, other.batch_size / cell.batch_size)
            for other, steps in self._steps.items()
            if (other.optimizer, other.seed) == (cell.optimizer, cell.seed)
        )
        return (self.sweep.prune_factor or 1.0) * min(known, default=math.inf)

    def _guess(self, study: StudyKey) -> float:
        """Return the learning rate most likely to be best."""
        course = self._courses[study]
        if course.optimum is not None:
            return math.exp(course.optimum[0])
        costs = self._costs[study]
        if costs:
            return min(costs, key=lambda lr: costs[lr][1] / costs[lr][0])
        first = next(iter(course.why), None)
        return first[0] if first and not self.sweep.exhaustive else middle(self.sweep.listed_lrs(study))
