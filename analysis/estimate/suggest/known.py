"""What has run for an answer, and what it calls for next.

First comes what the verdict calls for: more than one seed, batch sizes on the side where the answer may lie beyond the
measured ones or where the curve changes suddenly, learning rates beyond an edge. If nothing is missing, it is the
trials that narrow the interval most per example, see :mod:`analysis.estimate.suggest.design`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from analysis.estimate.definitions import HEADLINE
from analysis.estimate.diagnosis import FEWEST_SEEDS, SUDDEN, Verdict
from analysis.estimate.result import Answer
from analysis.estimate.studies import NOT_RUN, Study
from analysis.estimate.suggest.design import GOAL, MOST, Cell, Design
from cbs.trial.config import COMMAND
from cbs.trial.lr_choice import at_edges

SEEDS = 3  # Number of seeds that a first comparison needs
SEVERAL = 2  # Number of batch sizes that get a second seed first

_LRS_BEYOND = 2  # Learning rates that are asked for beyond an edge at a time

OPEN = 0.4  # Probability above which the least product is first looked for beyond the measured batch sizes

# The same where no runs at the measured batch sizes narrow the interval: that of an end which is open
LEAST_OPEN = 0.025

BEYOND = 0.5  # Probability above which seeds at the measured batch sizes do not help
APART = 4  # Ratio of the batch sizes with which it is looked for. Half of it, where that would do, left curves short.

# If the largest batch size takes fewer steps than this to the target, no larger one is added, because warmup and
# evaluations are then about as long as the run.
FEWEST_STEPS = 10.0

OFTEN = 1.1  # Ratio of the steps of neighbouring evaluations where these were too rare, as the advice has it

# Ratios of neighbouring batch sizes above which one in between is considered, and where the curve changes suddenly
_WIDE_GAP, _NEAR = 3.0, 1.5

Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Batch sizes, and the seeds that each of them is to have."""


class Wanted(NamedTuple):
    """What to have, and the reasons; and with how many runs the best learning rate of which of these batch sizes is to
    get a worse one on either side, though others say where it lies."""

    parts: list[Part]
    reasons: tuple[str, ...]
    brackets: Mapping[int, int] = {}


def with_more(seeds: Sequence[int], least: int, allowed: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return seeds with new ones added up to ``least``, all larger than the first, on which learning rates are
    searched; of ``allowed`` ones only, if these are given."""
    numbers: Iterable[int] = itertools.count(seeds[0]) if allowed is None else allowed
    new = (number for number in numbers if number not in seeds)
    return tuple(sorted([*seeds, *itertools.islice(new, max(0, least - len(seeds)))]))


class Known:
    """What has run for an answer.

    Attributes:
        reached: batch sizes that reached the target.
        edges: by batch size whose best learning rate is at an edge of the grid, learning rates beyond it.
        seeds: all seeds, in order.
        done: cells that have trials, and the learning rates that a sweep would not run again there.
        design: what further runs would narrow; ``None`` without draws.
        axes: of the sweep; ``None`` if it does not state them.
    """

    def __init__(
        self,
        answer: Answer,
        goal: float = 0.0,
        allowed: Sequence[int] | None = None,
        most: int = MOST,
        least: int = 1,
    ) -> None:
        self.answer, self.goal, self._allowed, self._most, self._least = answer, goal, allowed, most, least
        self.reached = [point.batch_size for point in answer.points if point.reached]
        self.edges = {
            point.batch_size: _beyond(study.along_lr, point.best_lr)
            for point, study in zip(answer.points, answer.studies, strict=True)
            if point.at_grid_edge and point.best_lr is not None
        }
        self.seeds = tuple(sorted({int(seed) for study in answer.studies for seed in study.seeds}))
        self.done = {
            (study.batch_size, int(seed)): set(study.lrs[np.isin(status, NOT_RUN, invert=True)].tolist())
            for study in answer.studies
            for seed, status in zip(study.seeds, study.status.T, strict=True)
        }
        if allowed is None and not answer.group.seeded:
            self._allowed = self.seeds  # every other seed would give the same run
        exchange = answer.definitions[HEADLINE].options["exchange"]
        self.design = None if answer.draws is None else Design(answer.draws, exchange)
        axes = answer.group.manifest.get("axes")
        self.axes: dict[str, Any] | None = axes if isinstance(axes, dict) else None

    def seeds_up_to(self, least: int) -> tuple[int, ...]:
        """Return the existing seeds, with new ones added up to ``least``, as far as these may be used."""
        return with_more(self.seeds, least, self._allowed)

    @property
    def searches(self) -> bool:
        """Whether the sweep searches its learning rates."""
        return self.axes is not None and self.axes.get("lrs") is None and not self.axes.get("lr_rule")

    def rates(self, sizes: Sequence[int]) -> tuple[float, ...] | None:
        """Return the learning rates for the command: those tried at the batch sizes, and those beyond an edge; ``None``
        if none were listed and no best one lies at an edge."""
        listed = self.axes is not None and self.axes.get("lrs") is not None
        if not (self.edges or listed):
            return None
        near = [study for study in self.answer.studies if listed or study.batch_size in sizes]
        tried = {lr for study in near for lr in study.lrs.tolist() if math.isfinite(lr)}
        beyond = {lr for lrs in self.edges.values() for lr in lrs}
        beyond = {lr for lr in beyond if not any(math.isclose(lr, it, rel_tol=1e-5) for it in tried)}
        return tuple(sorted(tried | beyond)) or None

    def searching(self) -> Wanted | None:
        """Return what a sweep that searches its learning rates needs if a best one is at an edge: never a list of them,
        and other gaps show only once this one is closed. ``None`` if the sweep does not search, or no best one is at an
        edge.

        At the sweep's own target the search goes on until the best one is interior, so it has not ended. At another
        target a new search, which starts from the best known learning rates, is far cheaper than a grid for all batch
        sizes, and the only way to evaluate more often there: trials do so near the target of their sweep.
        """
        group, axes = self.answer.group, self.axes
        rare = self.answer.verdict is Verdict.COARSE_STEPS and self.answer.target != group.target
        if not (self.edges or rare) or not group.stops_at_target or axes is None or not self.searches:
            return None
        where = f"at batch size {_listed(self.edges)}"
        if self.answer.target == group.target:
            sizes = {point.batch_size for point in self.answer.points}.union(_whole(axes.get("batch_sizes")))
            seeds = {*self.seeds}.union(_whole(axes.get("seeds")))
            reason = f"learning rates beyond the edge {where}: the search there has not ended"
            return Wanted([(tuple(sorted(sizes)), tuple(sorted(seeds)))], (reason,))
        if not self.edges:
            reason = "a sweep at this target, which evaluates often near it"
            return Wanted([(tuple(self.reached), self.seeds)], (reason,))
        reason = (
            f"a sweep at this target, which starts from the best learning rates here: {where} the best one is at the "
            "edge of the grid, and a sweep searches at its own target only"
        )
        return Wanted([(tuple(self.reached), self.seeds)], (reason,))

    def _protocol(self, part: str) -> dict[str, Any]:
        """Return a part of the sweep's protocol; empty where none is stated."""
        protocol = self.answer.group.manifest.get("protocol")
        stated = protocol.get(part) if isinstance(protocol, dict) else None
        return stated if isinstance(stated, dict) else {}

    def half_the_warmup(self) -> dict[str, int]:
        """Return the settings of a sweep with half the warmup, where the warmup decides the answer: more trials of this
        protocol would not help. Empty otherwise, and for a sweep that goes on by itself, whose protocol is fixed."""
        if self.goal or self.answer.verdict is not Verdict.IN_WARMUP:
            return {}
        lengths = {key: self._protocol("schedule").get(key) for key in ("warmup_steps", "warmup_examples")}
        return {f"schedule.{key}": length // 2 for key, length in lengths.items() if length}

    def often_evaluated(self) -> dict[str, float]:
        """Return the settings of a sweep that evaluates more often, which needs a folder of its own. Empty where this
        one did, or a program of somebody's evaluates."""
        now = self._protocol("evaluation").get("far_growth", OFTEN)
        programs = self._protocol("workload").get("name") == COMMAND
        return {} if programs or now <= OFTEN else {"evaluation.far_growth": OFTEN}

    def asked_for(self, least_chance: float = OPEN) -> Wanted | None:
        """Return the trials that the verdict calls for; ``None`` if it calls for none.

        Batch sizes beyond the measured ones are called for if the least product lies there with this probability.
        """
        smaller, larger = self.sides(least_chance)
        have = max(point.seeds for point in self.answer.points if point.reached)
        found = self.answer.doubts.sudden
        sudden = found is not None and found.chance > SUDDEN
        around = [size for size in self.reached if sudden and found and found.below <= size <= found.above]
        odd = _middles(around, _NEAR)
        at_edges = ", ".join(f"{size} ({_listed(lrs)})" for size, lrs in self.edges.items())
        least = "steps x examples may be least"
        # a sweep that goes on by itself looks with one seed where to go on
        first, wanted = (self.seeds[:1], FEWEST_SEEDS) if self.goal else (self.seeds_up_to(SEEDS), SEEDS)
        asked: list[tuple[Iterable[int], tuple[int, ...], str]] = [
            (smaller, first, f"batch size {_listed(smaller)}: {least} below the present ones"),
            (larger, first, f"batch size {_listed(larger)}: {least} above the present ones"),
            (self.edges, self.seeds, f"learning rates beyond the edge of the grid at batch size {at_edges}"),
            (odd, self.seeds[:wanted], f"batch sizes {_listed(odd)}: the curve changes suddenly there"),
        ]
        if not any(sizes for sizes, *_ in asked):
            few = have < min(FEWEST_SEEDS, len(self.seeds_up_to(FEWEST_SEEDS)))  # where there may be more of them
            why = f"{wanted} seeds: with one, the noise between seeds is hardly known"
            asked.append((self.near() if few else [], self.seeds_up_to(wanted), why))
        parts = [(tuple(sizes), seeds) for sizes, seeds, _ in asked if sizes]
        return Wanted(parts, tuple(reason for sizes, _, reason in asked if sizes)) if parts else None

    def near(self) -> list[int]:
        """Return the batch sizes at which a second seed tells most per example."""
        if self.design is None or not self.goal:
            return self.reached
        second = self.seeds_up_to(FEWEST_SEEDS)[-1:]
        cells = self.design.most_for_its_cost(dict.fromkeys(self.reached, second), 0.0)
        return sorted(size for size, _ in cells[:SEVERAL])

    def sides(self, least_chance: float) -> tuple[list[int], list[int]]:
        """Return a batch size to add below or above the existing ones, where the least product more probably lies; none
        once it probably lies between them, one on each side of a single one.

        None above batch sizes that did not reach the target, or reach it in fewer than :data:`FEWEST_STEPS`; below one
        that could not be run, as for lack of memory, one in between.
        """
        first, last = (self.answer.points[end] for end in (0, -1))
        below, above = self._beyond()
        short = last.steps_to_target is not None and last.steps_to_target < FEWEST_STEPS
        smaller = [max(1, first.batch_size // APART)] if first.reached and first.batch_size > 1 else []
        larger = [APART * last.batch_size] if last.reached and not short else []
        missed = [study for study in self.answer.studies if study.batch_size > self.reached[-1]]
        if missed and np.isin(missed[0].status, NOT_RUN).all():
            larger = _middles([self.reached[-1], missed[0].batch_size], _WIDE_GAP)
        if self.design is None:
            noise = self.answer.noise_scale.value  # of the order of the critical batch size
            if noise is None:
                return smaller, larger
            if larger and noise > APART**2 * last.batch_size:
                larger = [APART**2 * last.batch_size]
            return (smaller, []) if noise < first.batch_size else ([], larger)
        if max(below, above) <= least_chance:
            return [], []
        return (smaller, []) if below > above else ([], larger)

    def _beyond(self) -> tuple[float, float]:
        """Return the probabilities that the least product lies below the smallest, and above the largest batch size
        that reached the target."""
        if self.design is None:
            return 1.0, 1.0
        least, sizes = self.design.least, self.design.draws.batch_sizes
        return float(np.mean(least < math.log(sizes[0]))), float(np.mean(least > math.log(sizes[-1])))

    def most_for_its_cost(self) -> Wanted | None:
        """Return the runs that narrow the interval most per example, at present and at new batch sizes; ``None`` if the
        answer lies beyond them where no batch size can be added, because no further seed changes that."""
        if self.design is None or max(self._beyond()) > BEYOND:
            return None
        low, high = self.answer.definitions[HEADLINE].interval
        goal = GOAL
        # an interval that is narrow already, of an answer that is in doubt, is narrowed further
        if self.goal and low and high and 2 * self.goal < math.log(high / low):
            goal = max(goal, 2 * self.goal / math.log(high / low))
        first, last = (self.answer.points[end].batch_size for end in (0, -1))
        new = [first // 2] if first == self.reached[0] and first > 1 else []
        new += [last * 2] if last == self.reached[-1] else []
        new += _middles(self.reached, _WIDE_GAP)
        more = self.seeds_up_to(len(self.seeds) + self._most)
        following = {
            size: [seed for seed in more if (size, seed) not in self.done] for size in sorted({*self.reached, *new})
        }
        cells = self.design.most_for_its_cost(following, goal, self._most, self._least, self.believed())
        if not cells or self.design.width(cells) >= 1.0:
            return None
        by_seeds: dict[tuple[int, ...], list[int]] = {}
        for size in sorted({size for size, _ in cells}):
            had = [seed for at, seed in self.done if at == size]
            seeds = tuple(sorted({*had, *(seed for at, seed in cells if at == size and seed is not None)}))
            by_seeds.setdefault(seeds, []).append(size)
        runs = Counter(size for size, seed in cells if seed is not None)
        brackets = {size: self.design.bracket(size) for size, seed in cells if seed is None}
        told = ", ".join(f"{size} ({count})" for size, count in sorted(runs.items()))
        what = [f"runs at batch size {told}"] if runs else []
        what += [f"learning rates on both sides of the best one at batch size {_listed(brackets)}"] if brackets else []
        reason = f"{', and '.join(what)}: these narrow the interval most per example"
        parts = [(tuple(sizes), seeds) for seeds, sizes in by_seeds.items()]
        return Wanted(parts, (reason,), brackets)

    def believed(self) -> list[int]:
        """Return the batch sizes at which a sweep that goes on by itself has taken from others where the best learning
        rate lies."""
        return [
            point.batch_size
            for point, study in zip(self.answer.points, self.answer.studies, strict=True)
            if self.goal and self.searches and point.at_grid_edge is False and study.at_edge(study.winner or 0)
        ]

    def factor(self, cells: Iterable[Cell]) -> float | None:
        """Return the expected width of the interval with these cells, relative to now; ``None`` if an end of it is
        open."""
        if self.design is None or None in self.answer.definitions[HEADLINE].interval:
            return None
        return self.design.width([cell for cell in cells if cell not in self.done])

    def examples(self, batch_size: int) -> float:
        """Return the examples to target of one trial: by the curve, or in proportion to the nearest batch size."""
        if self.design is not None:
            return self.design.examples(batch_size)
        steps = {point.batch_size: point.steps_to_target for point in self.answer.points if point.steps_to_target}
        return batch_size * steps[min(steps, key=lambda size: abs(math.log(size / batch_size)))]


def _beyond(study: Study, best: float) -> tuple[float, ...]:
    """Return learning rates beyond an edge, continuing the ratio of the last two; a factor of 2 if there is only
    one."""
    lrs, row = study.lrs[study.tried], int(np.flatnonzero(study.lrs[study.tried] == best)[0])
    lowest, highest = at_edges(row, [True] * len(lrs))
    ratio = 2.0 if len(lrs) == 1 else float(lrs[1] / lrs[0]) if lowest else float(lrs[-1] / lrs[-2])
    powers = [*(range(-_LRS_BEYOND, 0) if lowest else ()), *(range(1, _LRS_BEYOND + 1) if highest else ())]
    return tuple(float(f"{best * ratio**power:.6g}") for power in powers)


def _whole(values: Any) -> list[int]:
    return [value for value in values if isinstance(value, int)] if isinstance(values, list) else []


def _middles(batch_sizes: Sequence[int], ratio: float) -> list[int]:
    """Return the geometric means of gaps of more than this ratio between increasing batch sizes."""
    return [round(math.sqrt(low * high)) for low, high in pairwise(batch_sizes) if high / low > ratio]


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
