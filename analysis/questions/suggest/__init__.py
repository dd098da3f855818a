"""Which trials to run next, and what they buy.

First what the verdict asks for: three seeds, batch sizes on the side of the curve that has not been seen, learning
rates beyond an edge. Where nothing is missing, the trials that narrow the interval most per example, see
:mod:`analysis.questions.suggest.design`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.estimate.quantity import Plain
from analysis.estimate.result import Answer
from analysis.estimate.studies import NOT_RUN, Study
from analysis.questions.suggest.design import GOAL, best_per_example, log_steps, two_sided, width_factor
from analysis.questions.suggest.earlier_command import adding
from analysis.read.results import Group
from cbs.lr_choice import at_edges
from cbs.store import Store
from cbs.target import Target

SEEDS = 3
"""Seeds an interval is worth comparing with."""

_LRS_BEYOND = 2
_WIDE_GAP = 3.0


@dataclass(frozen=True, kw_only=True)
class Suggestion(Plain):
    """Trials that would help: every batch size with every seed (and learning rate), less what is there already.

    Attributes:
        group: the trials they join.
        target: the target of the answer that asked for them.
        batch_sizes: examples per step, increasing.
        seeds: all seeds to have at these batch sizes.
        lrs: learning rates; ``None`` where the sweep searches them.
        missing: (batch size, seed) of which trials are missing.
        trials: how many are missing; ``None`` where learning rates are searched.
        reasons: one line each.
        interval_factor: expected width of the interval of ``ln B_crit`` relative to now; ``None`` where there is no
            interval yet to compare with.
        cost: examples that the missing trials take if all of them run to the target; those that are pruned take less,
            or up to the pruning factor more.
        command: for the shell; empty where the sweep was not run by ``cbs sweep``.
    """

    group: Group = field(repr=False)
    target: Target
    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    lrs: tuple[float, ...] | None
    missing: tuple[tuple[int, int], ...]
    trials: int | None
    reasons: tuple[str, ...]
    interval_factor: float | None
    cost: float
    command: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        group = self.group
        about = {"sweep": group.sweep, "workload": group.workload, "optimizer": group.optimizer}
        return about | super().to_json()


@dataclass(frozen=True)
class _Design:
    """Batch sizes and seeds to have, and why."""

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    reasons: tuple[str, ...]


def suggest(answer: Answer) -> Suggestion | None:
    """The trials that would help this answer most; ``None`` where no batch size reached the target, because more trials
    of the same protocol would not either.

    Raises:
        ResultsError: if ``sweep.json`` of the group cannot be read.
    """
    if not any(point.reached for point in answer.points):
        return None
    edges = {
        point.batch_size: _beyond(study, point.best_lr)
        for point, study in zip(answer.points, answer.studies, strict=True)
        if point.at_grid_edge and point.best_lr is not None
    }
    design = _asked_for(answer, edges) or _most_for_its_cost(answer)
    if design is None:
        return None
    rates = _rates(answer, design, edges)
    missing, trials, cost = _missing(answer, design, rates)
    if not missing:
        return None
    return Suggestion(
        group=answer.group,
        target=answer.target,
        batch_sizes=design.batch_sizes,
        seeds=design.seeds,
        lrs=rates,
        missing=missing,
        trials=trials,
        reasons=design.reasons,
        interval_factor=_factor(answer, missing),
        cost=cost,
        command=adding(
            answer.group.folder, answer.group.optimizer.partition("(")[0], design.batch_sizes, design.seeds, rates
        ),
    )


def _rates(answer: Answer, design: _Design, edges: dict[int, tuple[float, ...]]) -> tuple[float, ...] | None:
    """Learning rates of the command; ``None`` where the sweep searches them and no best one lies at an edge.

    A search does not go on at a target that the sweep was not run for, so those beyond an edge are listed, with those
    that were tried at the same batch sizes.
    """
    axes = Store(answer.group.folder).manifest().get("axes")
    searched = not isinstance(axes, dict) or axes.get("lrs") is None
    if not edges and searched:
        return None
    near = [study for study in answer.studies if not searched or study.batch_size in design.batch_sizes]
    tried = {lr for study in near for lr in study.lrs.tolist() if math.isfinite(lr)}
    return tuple(sorted(tried.union(*edges.values()))) or None


def _beyond(study: Study, best: float) -> tuple[float, ...]:
    """Learning rates on the far side of an edge, by the ratio of its last two; a factor of 2 where it is the only
    one."""
    lrs, row = study.lrs[study.tried], int(np.flatnonzero(study.lrs[study.tried] == best)[0])
    lowest, highest = at_edges(row, [True] * len(lrs))
    ratio = 2.0 if len(lrs) == 1 else float(lrs[1] / lrs[0]) if lowest else float(lrs[-1] / lrs[-2])
    powers = [*(range(-_LRS_BEYOND, 0) if lowest else ()), *(range(1, _LRS_BEYOND + 1) if highest else ())]
    return tuple(float(f"{best * ratio**power:.6g}") for power in powers)


def _seeds(answer: Answer, least: int) -> tuple[int, ...]:
    """The seeds that are there, with as many new ones as are missing to ``least``."""
    have = sorted({int(seed) for study in answer.studies for seed in study.seeds})
    new = (number for number in range(len(have) + least) if number not in have)
    return tuple(sorted([*have, *(next(new) for _ in range(least - len(have)))]))


def _asked_for(answer: Answer, edges: dict[int, tuple[float, ...]]) -> _Design | None:
    """What the verdict asks for; ``None`` where it asks for nothing."""
    reached = [point.batch_size for point in answer.points if point.reached]
    sizes: set[int] = set()
    reasons: list[str] = []
    seeds = _seeds(answer, SEEDS)
    have = max(point.seeds for point in answer.points if point.reached)
    smaller, larger = _sides(answer)
    for new, side, part in ((smaller, "smaller", "perfect-scaling"), (larger, "larger", "saturating")):
        if new:
            sizes |= set(new)
            reasons.append(f"{side} batch sizes ({_listed(new)}): the {part} part of the curve has not been reached")
    if edges:
        sizes |= set(edges)
        where = ", ".join(f"{size} ({_listed(lrs)})" for size, lrs in edges.items())
        reasons.append(f"learning rates beyond the edge of the grid at batch size {where}")
    beside = _beside_decisive(answer)
    if beside:
        sizes |= set(beside)
        reasons.append(f"batch sizes {_listed(beside)}: one batch size alone decides")
    if have < SEEDS:
        sizes |= set(reached)
        reasons.append(f"{len(seeds)} seeds instead of {have}: with fewer the noise of a seed is hardly known")
    return _Design(tuple(sorted(sizes)), seeds, tuple(reasons)) if reasons else None


def _sides(answer: Answer) -> tuple[list[int], list[int]]:
    """Batch sizes to add below and above those that are there, until the curve is seen on both sides.

    One or two at a time, each a factor 2 further; none above batch sizes that were run and did not reach the target.
    """
    reached = [point.batch_size for point in answer.points if point.reached]
    first, last = answer.points[0].batch_size, answer.points[-1].batch_size
    seen = answer.doubts.seen if len(reached) > 1 else (False, False)
    smaller = [first // 2**power for power in (2, 1) if first % 2**power == 0 and first >= 2**power]
    larger = [last * 2**power for power in (1, 2)]
    return (
        smaller if not seen[0] and first == reached[0] else [],
        larger if not seen[1] and last == reached[-1] else [],
    )


def _beside_decisive(answer: Answer) -> list[int]:
    """The batch size that decides alone, and the middles of the gaps on its sides; empty where none does."""
    found = answer.doubts.decisive()
    if found is None:
        return []
    size = round(found[0])
    sizes = [point.batch_size for point in answer.points]
    return sorted({size, *(_middle(*pair) for pair in pairwise(sizes) if size in pair)})


def _middle(below: int, above: int) -> int:
    return round(math.sqrt(below * above))


def _most_for_its_cost(answer: Answer) -> _Design | None:
    """New batch sizes at the seeds that are there, or further seeds at some: whatever reaches the goal at less cost."""
    fit = answer.fit
    if fit is None or not two_sided(fit):
        return None
    sizes = [point.batch_size for point in answer.points]
    reached = [point.batch_size for point in answer.points if point.reached]
    new = [sizes[0] // 2] if sizes[0] == reached[0] and sizes[0] % 2 == 0 else []
    new += [sizes[-1] * 2] if sizes[-1] == reached[-1] else []
    new += [_middle(*pair) for pair in pairwise(reached) if pair[1] / pair[0] > _WIDE_GAP]
    have = _seeds(answer, 0)
    plans = []
    for candidates, seeds, what in (
        (new, have, "new batch sizes"),
        (reached, _seeds(answer, len(have) + 1), "one more seed at batch sizes"),
    ):
        chosen = best_per_example(fit, candidates, len(have) if seeds == have else 1)
        if chosen:
            cells = _new(answer, [(size, seed) for size in chosen for seed in seeds])
            reason = f"{what} {_listed(chosen)}: nothing is missing; these narrow the interval most per example"
            plans.append((_factor(answer, cells) or 1.0, _examples(answer, cells), _Design(chosen, seeds, (reason,))))
    if not plans:
        return None
    return min(plans, key=lambda plan: (plan[0] > GOAL, plan[1] if plan[0] <= GOAL else plan[0]))[2]


def _new(answer: Answer, cells: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cells that have no trial yet."""
    there = {(study.batch_size, int(seed)) for study in answer.studies for seed in study.seeds}
    return [cell for cell in cells if cell not in there]


def _factor(answer: Answer, cells: Sequence[tuple[int, int]]) -> float | None:
    """Expected width of the interval with these cells, relative to now."""
    if answer.fit is None:
        return None
    new = _new(answer, cells)
    sizes = sorted({size for size, _ in new})
    seeds = [sum(size == other for other, _ in new) for size in sizes]
    return width_factor(answer.fit, sizes, seeds, answer.confidence)


def _missing(
    answer: Answer, design: _Design, lrs: tuple[float, ...] | None
) -> tuple[tuple[tuple[int, int], ...], int | None, float]:
    """Cells of which trials are missing, how many (if it is known), and the examples they take."""
    studies = {study.batch_size: study for study in answer.studies}
    usual = int(np.median([len(study.lrs) for study in answer.studies]))
    cells, trials, cost = [], 0, 0.0
    for size in design.batch_sizes:
        for seed in design.seeds:
            done = _done(studies.get(size), seed)
            lacking = (0 if done else usual) if lrs is None else sum(lr not in done for lr in lrs)
            if lacking:
                cells.append((size, seed))
                trials += lacking
                cost += lacking * _examples(answer, [(size, seed)])
    return tuple(cells), None if lrs is None else trials, cost


def _done(study: Study | None, seed: int) -> set[float]:
    """Learning rates of a seed that a sweep does not run again."""
    if study is None or seed not in study.seeds:
        return set()
    column = study.status[:, int(np.flatnonzero(study.seeds == seed)[0])]
    return {float(lr) for lr, status in zip(study.lrs, column, strict=True) if status not in NOT_RUN}


def _examples(answer: Answer, cells: Sequence[tuple[int, int]]) -> float:
    """Examples to target of one trial in every cell: by the fit, or in proportion to the nearest batch size."""
    fit = answer.fit
    if fit is not None:
        return sum(size * math.exp(log_steps(fit, size)) for size, _ in cells)
    reached = [point for point in answer.points if point.steps_to_target is not None]
    total = 0.0
    for size, _ in cells:
        near = min(reached, key=lambda point: abs(math.log(point.batch_size / size)))
        total += size * (near.steps_to_target or 0.0)
    return total


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
