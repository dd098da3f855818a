"""Suggest which trials to run next, and estimate what they gain."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.estimate.suggest.design import MOST
from analysis.estimate.suggest.earlier_command import adding
from analysis.estimate.suggest.known import LEAST_OPEN, Known, Part, Wanted
from analysis.formatting import shown
from analysis.read.groups import Group
from cbs.trial.target import Target

_LRS_FROM_KNOWN = 3  # Learning rates of a search that starts at the best one: this one, and a worse one on either side


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Trials that would help.

    Attributes:
        batch_sizes: batch sizes in examples, increasing.
        lrs: learning rates; ``None`` if the sweep searches them.
        edges: batch sizes whose best learning rates are at an edge of those tried.
        parts: batch sizes that are to have the same seeds, and these.
        brackets: batch sizes at which the best learning rate is to get a worse one on either side, on the first seed.
        missing: cells that lack trials, as batch size and seed.
        trials: number of missing trials; ``None`` if learning rates are searched.
        interval_factor: expected width of the interval of ``ln B_crit`` relative to now; ``None`` if there is no
            interval yet.
        cost: examples that the missing trials take if all of them run to the target; pruned ones take less, or up to
            the pruning factor more.
        command: shell command; empty if the sweep was not run by ``cbs sweep``.
    """

    group: Group = field(repr=False)
    target: Target
    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    lrs: tuple[float, ...] | None
    edges: tuple[int, ...] = field(repr=False)
    parts: tuple[Part, ...] = field(repr=False)
    brackets: tuple[int, ...] = field(repr=False)
    missing: tuple[tuple[int, int], ...]
    trials: int | None
    reasons: tuple[str, ...]
    interval_factor: float | None
    cost: float
    command: str

    def to_json(self) -> dict[str, Any]:
        return self.group.whose | shown(self)


def suggest(
    answer: Answer,
    goal: float = 0.0,
    seeds: Sequence[int] | None = None,
    most: int = MOST,
    least: int = 1,
    *,
    outwards: bool = False,
) -> Suggestion | None:
    """Return the trials that would help this answer most; ``None`` if no batch size reached the target, or evaluations
    are too rare at the sweep's own and another program sets them: more trials of the same protocol would not help.

    Args:
        answer: what is known.
        goal: half-width of the interval of ``ln B_crit`` beyond which nothing needs to be narrowed.
        seeds: the seeds that may be used; ``None`` for any.
        most, least: largest and smallest number of runs, where these are to narrow the interval.
        outwards: whether batch sizes beyond the measured ones are to close the interval, rather than runs at these.
    """
    known = Known(answer, goal, seeds, most, least)
    group = answer.group
    rare = not goal and answer.verdict is Verdict.COARSE_STEPS and answer.target == group.target
    often = known.often_evaluated() if rare else {}
    if not known.reached or (rare and not often):
        return None
    searching = None if rare else known.searching()
    changed = often or ({} if searching else known.half_the_warmup())
    anew = bool(changed) or (searching is not None and answer.target != group.target)
    why = "a sweep that evaluates more often" if often else "a sweep with half the warmup"
    other = Wanted([(tuple(known.reached), known.seeds)], (why,)) if changed else None
    wanted = searching or other or known.asked_for()
    wanted = wanted or (None if outwards else known.most_for_its_cost()) or known.asked_for(LEAST_OPEN)
    if wanted is None:
        return None
    parts = wanted.parts
    sizes = tuple(sorted({size for part, _ in parts for size in part}))
    rates, done = None if searching or changed else known.rates(sizes), {} if anew else known.done
    usual = _LRS_FROM_KNOWN if anew else int(np.median([len(study.lrs) for study in answer.studies]))
    lacking: dict[tuple[int, int], int] = {}
    for cell in itertools.chain.from_iterable(itertools.product(*part) for part in parts):
        there = done.get(cell, set())
        beyond = len(known.edges.get(cell[0], ())) if searching else 0
        lacking[cell] = (beyond if there else usual) if rates is None else len(set(rates) - there)
    lacking |= {(size, known.seeds[0]): runs for size, runs in wanted.brackets.items()}
    missing = tuple(sorted(cell for cell, count in lacking.items() if count))
    if not missing:
        return None
    target = answer.target if anew and answer.target != group.target else None
    commands = (
        adding(group.manifest, group.folder, group.choice, *part, rates, target=target, settings=changed)
        for part in parts
        if any(size in part[0] and seed in part[1] for size, seed in missing)
    )
    return Suggestion(
        group=group,
        target=answer.target,
        batch_sizes=sizes,
        seeds=tuple(sorted({seed for _, seeds in parts for seed in seeds})),
        lrs=rates,
        edges=tuple(known.edges),
        parts=tuple(parts),
        brackets=tuple(sorted(wanted.brackets)),
        missing=missing,
        trials=None if rates is None else sum(lacking.values()),
        reasons=wanted.reasons,
        interval_factor=known.factor([*missing, *((size, None) for size in wanted.brackets)]),
        cost=sum(lacking[cell] * known.examples(cell[0]) for cell in missing),
        command=" && ".join(filter(None, commands)),
    )
