"""The search of one study: what is known of its trials, and which of them it needs next.

A study starts once those of the same optimizer that are nearer to the middle are settled, at the learning rate that
:mod:`cbs.trial.lr_choice` predicts from them. Which trials it needs then follows from its finished trials alone
(:mod:`sweeps.search.bracket`), and it is asked again only when all trials it asked for have finished.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cbs.trial.lr_choice import SLOPE, Expected, best_lr, censored, expected
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.search import bracket
from sweeps.search.bracket import Rules, TrialRequest
from sweeps.search.objective import Objective
from sweeps.search.trial_table import FARTHEST, OCTAVE, SEED_DEVIATION, Lattice, Seen, TrialOutcome, middle
from sweeps.search.warm_start import expected_from
from sweeps.spec.axes import Cell, StagedStudy, StudyKey
from sweeps.spec.given_rates import Prior
from sweeps.spec.spec import Sweep

# Number of positions to which the predicted learning rate is rounded; coarse, so that batch sizes share learning
# rates.
START = OCTAVE // 2

FIRST = 3  # Number of trials with which every study begins

# Log steps by which steps may fall faster than the batch size grows, by chance
STEEP = 3 * math.sqrt(2) * SEED_DEVIATION


class StudySearch:
    """The search of one study.

    Args:
        plan: the study and its seeds.
        peers: the searches of all studies of its optimizer, by increasing batch size; they are added afterwards.
        lattice: learning rates that it may try.
        rules: when it stops.
        listed: its learning rates if it is not searched.
        prior: best learning rates of the optimizer in another sweep, if known.

    Attributes:
        results: all its trials that have ended, by learning rate and seed.
        costs: the costs of those that have one.
        seen: trials that were requested and have finished.
        missing: trials that were requested and have not finished.
        why: reason for every trial that was requested.
        fewest: fewest steps to target, by seed.
        started: whether any trial was requested.
        settled: whether its optimum is known well enough for the studies that wait for it.
        optimum: ln of the best learning rate on the first seed, and its variance.
        level: ln of the cost there; ``None`` if no trial has one.
    """

    def __init__(
        self, plan: StagedStudy, peers: list[StudySearch], lattice: Lattice, rules: Rules, *,
        listed: tuple[float, ...] | None = None, prior: Prior | None = None,
    ) -> None:  # fmt: skip
        self.key, self.batch_size, self.seeds, self.stage = plan.study, plan.study.batch_size, plan.seeds, plan.stage
        self.peers, self.lattice, self.listed, self.prior = peers, lattice, listed, prior
        self.results: dict[tuple[float, int], TrialResult] = {}
        self.costs: dict[tuple[float, int], float] = {}
        self.seen: dict[tuple[float, int], TrialResult] = {}
        self.missing: set[tuple[float, int]] = set()
        self.why: dict[tuple[float, int], str] = {}
        self.fewest: dict[int, float] = {}
        self.started = self.settled = False
        self.optimum: tuple[float, float] | None = None
        self.level: float | None = None
        self._rules = rules

    @property
    def cells(self) -> list[Cell]:
        return [Cell(self.key.optimizer, self.batch_size, seed) for seed in self.seeds]

    @functools.cached_property
    def best(self) -> tuple[float, float] | None:
        """The best learning rate over the seeds so far, and the geometric mean of its costs.

        Costs are steps to target, or another cost if trials train to a budget (:mod:`sweeps.search.objective`).
        ``None`` if no trial has a cost.
        """
        lrs, table = self.lrs, self.table()
        ran = np.array([[(lr, seed) in self.results for seed in self.seeds] for lr in lrs])
        if not self.costs or (row := best_lr(table, ran)) is None:
            return None
        return lrs[row], float(np.exp(np.log(table[row][np.isfinite(table[row])]).mean()))

    @property
    def lrs(self) -> tuple[float, ...]:
        """The learning rates that are planned or have a trial."""
        return tuple(sorted({lr for lr, _ in (*self.results, *self.why)}))

    def table(self) -> np.ndarray:
        """Return the costs after the pruning rule, shape ``[learning rates, seeds]``.

        NaN where a trial has no cost or has not run.
        """
        costs = [[self.costs.get((lr, seed), math.nan) for seed in self.seeds] for lr in self.lrs]
        return censored(np.array(costs, dtype=float), self._rules.prune_factor)

    @property
    def interior(self) -> bool:
        """Whether the best learning rate has a worse one on either side, or other batch sizes are believed."""
        believed = self.settled and self._rules.believes
        return self.best is not None and (self.lrs[0] < self.best[0] < self.lrs[-1] or believed)

    @property
    def counts(self) -> tuple[int, int]:
        """The number of finished and of planned trials; more may be planned as trials end."""
        return len(self.why) - len(self.missing), len(self.why)

    @property
    def guess(self) -> float:
        """The learning rate most likely to be best."""
        if self.optimum is not None:
            return math.exp(self.optimum[0])
        logs: dict[float, list[float]] = {}
        for (lr, _), cost in self.costs.items():
            logs.setdefault(lr, []).append(math.log(max(cost, 1e-300)))
        if logs:
            return min(logs, key=lambda lr: sum(logs[lr]) / len(logs[lr]))
        return next(iter(self.why))[0] if self.listed is None else middle(self.listed)

    def most_steps(self, seed: int) -> float:
        """Return the number of steps beyond which a trial is not the best of its cell, judged by all batch sizes.

        At its best learning rate a larger batch takes no more steps, and a smaller one no more examples.
        """
        known = (
            each.fewest[seed] * max(1.0, each.batch_size / self.batch_size)
            for each in self.peers
            if seed in each.fewest
        )
        return (self._rules.prune_factor or 1.0) * min(known, default=math.inf)

    def note(self, result: TrialResult) -> None:
        """Take in a trial that has ended, whether or not it was requested."""
        cell = result.config.lr, result.config.seed
        self.results[cell] = result
        self.__dict__.pop("best", None)  # it is worked out anew when asked for
        if result.steps_to_target is not None:
            self.fewest[cell[1]] = min(result.steps_to_target, self.fewest.get(cell[1], math.inf))
        if math.isfinite(cost := self._rules.objective.cost(result)):
            self.costs[cell] = cost
        if cell in self.missing:
            self.missing.remove(cell)
            self.seen[cell] = result

    def advance(self) -> list[tuple[Cell, float]]:
        """Request the trials that the study needs until at least one of them has no stored result, and those that
        studies need that wait for it; return the ones without."""
        missing: list[tuple[Cell, float]] = []
        while not self.missing:
            asks = self._asks()
            missing += self._settle(asks)
            for ask in asks:
                cell = ask.lr, ask.seed
                self.why[cell] = ask.why
                if cell in self.results:
                    self.seen[cell] = self.results[cell]
                else:
                    self.missing.add(cell)
                    missing.append((Cell(self.key.optimizer, self.batch_size, ask.seed), ask.lr))
            if not asks:
                break
        return missing

    def _asks(self) -> list[TrialRequest]:
        if self.listed is not None:
            lrs, self.started = () if self.started else self.listed, True
            return [TrialRequest(lr, seed, "on the grid") for lr in lrs for seed in self.seeds]
        if not self.started:
            self.started = all(each.settled for each in self.inner)
            return self._start() if self.started else []
        asks = self._needed()
        if not asks and len(self.results) > len(self.seen):
            # trials that this search would not have requested can show a better learning rate
            self.seen = self.results | self.seen
            asks = self._needed()
        return asks or self._doubted()

    def _needed(self) -> list[TrialRequest]:
        rules = self.rules
        return bracket.needed(_outcomes(self.seen, rules, self.seeds), self.seeds, self.lattice, rules)

    def _start(self) -> list[TrialRequest]:
        """Request the first trials: at the expected best learning rate and a factor of 2 beside it, on both sides where
        other batch sizes are only a hint. Above a default that is far too low the target is reached, or trials diverge
        soon; below it they would spend their whole budget, too."""
        (first, *_), lattice, rules = self.seeds, self.lattice, self.rules
        law = rules.expected
        position = lattice.nearest(law.log_lr, START) if law else 0
        mine = _outcomes(self.results, rules, [first])
        if (lattice.lr(position), first) not in mine and mine and bracket.bracketed(mine, [first], lattice, rules):
            self.seen = dict(self.results)
            return self._needed()
        why = "the optimizer's default: nothing is known yet"
        if law:
            why = f"{self._sources} predict {math.exp(law.log_lr):.3g} within a factor of {math.exp(law.deviation):.2g}"
        beside = "a factor of 2 beside the expected best"
        here = math.log(lattice.lr(position))
        sides: tuple[int, ...] = (1, -1) if law else (1,)
        if law is not None and rules.believes:
            alone = rules.believed(here, law, SEED_DEVIATION, len(self.seeds))
            sides = () if alone else (law.side(here),)
        return [
            TrialRequest(lattice.lr(position), first, why),
            *(TrialRequest(lattice.lr(position + side * OCTAVE), first, beside) for side in sides),
        ]

    def _settle(self, asks: list[TrialRequest]) -> list[tuple[Cell, float]]:
        """Note the optimum once the first seed is bracketed, and advance the studies that wait for it."""
        if self.settled or not self.started or self.listed is not None:
            return []
        first, lattice, rules = self.seeds[:1], self.lattice, self.rules
        mine = _outcomes(self.seen, rules, first)
        if not mine or (asks and not bracket.bracketed(mine, first, lattice, rules)):
            return []
        self.settled = True
        # what other batch sizes said is no evidence of its own
        self.optimum = bracket.optimum(mine, first, lattice, rules) if len(mine) > 1 else None
        costs = [end.cost for end in mine.values() if math.isfinite(end.cost)]
        self.level = math.log(min(costs)) if costs else None
        waiting = (each for each in self.peers if (each.larger is self if each.started else self in each.inner))
        return [asked for each in waiting for asked in each.advance()]

    def _doubted(self) -> list[TrialRequest]:
        """Request the learning rate that the next larger batch size suggests, if the steps fall and the best learning
        rate rises to it by more than the batch size grows; asked once a study needs nothing else."""
        larger = self.larger
        if larger is None or self._rules.objective.judged is None:
            return []
        if self.optimum is None or larger.optimum is None or self.level is None or larger.level is None:
            return []
        ratio = math.log(larger.batch_size / self.batch_size)
        fall, rise = self.level - larger.level, larger.optimum[0] - self.optimum[0]
        position = self.lattice.nearest(larger.optimum[0] - SLOPE * ratio, START)
        tried = any(abs(self.lattice.position(lr) - position) < START for lr, _ in self.seen)
        if fall - ratio < STEEP or rise < ratio or tried or abs(position) > FARTHEST:
            return []
        why = f"{math.exp(fall):.2g} times as many steps as at {larger.batch_size}: the learning rate looks wrong"
        return [TrialRequest(self.lattice.lr(position), self.seeds[0], why)]

    @property
    def rules(self) -> Rules:
        """The rules, with the unit of costs taken from the first trials, and with what other batch sizes say now."""
        first = [self.seen[cell] for cell in itertools.islice(self.why, FIRST) if cell in self.seen]
        # more steps than other batch sizes allow at the best learning rate: they are wrong about this one
        too_slow = self.fewest.get(self.seeds[0], 0.0) > self.most_steps(self.seeds[0])
        believes, objective = self._rules.believes and not too_slow, self._rules.objective.scaled(first)
        return replace(self._rules, objective=objective, expected=self._law(), believes=believes)

    def _law(self) -> Expected | None:
        at = math.log(self.batch_size)
        known = [(math.log(each.batch_size), *each.optimum) for each in self.inner if each.optimum is not None]
        if self.prior is not None:
            return expected_from(self.prior, at, known)
        return expected(at, *zip(*known, strict=True)) if known else None

    @property
    def _sources(self) -> str:
        """The sources of the prediction in words."""
        origins = ["the batch sizes tried"] if any(each.optimum is not None for each in self.inner) else []
        return " and ".join(origins if self.prior is None else [*origins, f"the results in {self.prior.source}"])

    @functools.cached_property
    def inner(self) -> list[StudySearch]:
        """Studies whose optima determine where this one starts: those of earlier stages, and of its own stage those
        whose batch size is nearer to the middle."""
        together = [each for each in self.peers if each.stage == self.stage]
        centre = (len(together) - 1) // 2
        away = abs(together.index(self) - centre)
        nearer = [each for index, each in enumerate(together) if abs(index - centre) < away]
        return [each for each in self.peers if each.stage < self.stage] + nearer

    @functools.cached_property
    def larger(self) -> StudySearch | None:
        """The study at the next larger batch size."""
        return next((each for each in self.peers if each.batch_size > self.batch_size), None)


def studies_of(sweep: Sweep, objective: Objective) -> dict[StudyKey, StudySearch]:
    """Return the search of every study of a sweep, with all that it has to know of the sweep."""
    rules = Rules(resolution=sweep.search.lr_resolution, prune_factor=sweep.prune_factor, objective=objective)
    lattices = {optimizer: Lattice(sweep.lr_grid(optimizer)) for optimizer in sweep.choices}
    peers: dict[str, list[StudySearch]] = {optimizer: [] for optimizer in sweep.choices}
    for key, plan in sweep.axes.plans.items():
        study = StudySearch(
            plan,
            peers[key.optimizer],
            lattices[key.optimizer],
            replace(rules, believes=sweep.believes(key)),
            listed=sweep.listed_lrs(key) if sweep.exhaustive else None,
            prior=sweep.search.warm_start.get(str(sweep.choices[key.optimizer])),
        )
        peers[key.optimizer].append(study)
    return {study.key: study for studies in peers.values() for study in studies}


def _outcomes(results: Mapping[tuple[float, int], TrialResult], rules: Rules, seeds: Sequence[int]) -> Seen:
    """Return :func:`outcome` of every trial of some seeds, by learning rate and seed."""
    return {cell: outcome(result, rules.objective) for cell, result in results.items() if cell[1] in seeds}


def outcome(result: TrialResult, objective: Objective) -> TrialOutcome:
    """Return what the search needs to know about a trial."""
    cost = objective.cost(result)
    target = objective.judged or result.config.target
    values = result.values(target.metric) or [math.nan]
    if result.status is TrialStatus.PRUNED and target.reached(values[-1]):
        # it had reached the target before others were found to be faster, and the search went on from there
        cost = target.crossing([row.step for row in result.evaluations], values) or math.nan
    first, last = (target.distance(value) for value in (values[0], values[-1]))
    share = 0.0 if math.isfinite(cost) else last / first if first > 0 else math.inf
    gone = result.status in (TrialStatus.DIVERGED, TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)
    return TrialOutcome(
        cost=cost,
        distance=share if math.isfinite(share) and not gone else math.inf,
        tells=result.status not in (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY),
    )
