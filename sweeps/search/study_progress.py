"""Progress of the search of one study, and what the search needs to know about its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cbs.trial.lr_choice import SLOPE
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.search.bracket import Rules, TrialRequest
from sweeps.search.lattice import FARTHEST, OCTAVE, Lattice
from sweeps.search.objective import Objective
from sweeps.search.trial_table import SEED_DEVIATION, Seen, TrialOutcome
from sweeps.spec.cell import StudyKey
from sweeps.spec.spec import Sweep

START = OCTAVE // 2
"""Number of positions to which the predicted learning rate is rounded; coarse, so that batch sizes share learning
rates."""

STEEP = 3 * math.sqrt(2) * SEED_DEVIATION
"""Log steps by which steps may fall faster than the batch size grows, by chance."""


@dataclass
class StudyProgress:
    """Progress of the search of one study.

    Attributes:
        study: the study.
        inner: studies of the same optimizer that are searched before, whose optima determine where this one starts.
        seen: trials that were requested and have finished.
        missing: trials that were requested and have not finished.
        why: reason for every trial that was requested.
        started: whether any trial was requested.
        settled: whether its optimum is known well enough for the studies that wait for it.
        optimum: ln of the best learning rate on the first seed, and its variance.
        level: ln of the cost there; ``None`` if no trial has one.
    """

    study: StudyKey
    inner: list[StudyKey] = field(default_factory=list)
    seen: dict[tuple[float, int], TrialResult] = field(default_factory=dict)
    missing: set[tuple[float, int]] = field(default_factory=set)
    why: dict[tuple[float, int], str] = field(default_factory=dict)
    started: bool = False
    settled: bool = False
    optimum: tuple[float, float] | None = None
    level: float | None = None


def inner(study: StudyKey, sweep: Sweep) -> list[StudyKey]:
    """Return the studies of the same optimizer that are searched before this one: those of earlier stages, and of its
    own stage those whose batch size is nearer to the middle."""
    mine = [each for each in sweep.studies() if each.optimizer == study.optimizer]
    stage = sweep.axes.plans[study].stage
    together = [each for each in mine if sweep.axes.plans[each].stage == stage]
    centre = (len(together) - 1) // 2
    away = abs(together.index(study) - centre)
    return [each for each in mine if sweep.axes.plans[each].stage < stage] + [
        each for place, each in enumerate(together) if abs(place - centre) < away
    ]


def doubted(course: StudyProgress, larger: StudyProgress, lattice: Lattice, seed: int) -> list[TrialRequest]:
    """Request the learning rate that the next larger batch size suggests, if the steps fall and the best learning rate
    rises to it by more than the batch size grows; asked once a study needs nothing else."""
    if course.optimum is None or larger.optimum is None or course.level is None or larger.level is None:
        return []
    ratio = math.log(larger.study.batch_size / course.study.batch_size)
    fall, rise = course.level - larger.level, larger.optimum[0] - course.optimum[0]
    position = lattice.nearest(larger.optimum[0] - SLOPE * ratio, START)
    tried = any(abs(lattice.position(lr) - position) < START for lr, _ in course.seen)
    if fall - ratio < STEEP or rise < ratio or tried or abs(position) > FARTHEST:
        return []
    size = larger.study.batch_size
    why = f"{math.exp(fall):.2g} times as many steps as at {size}: the learning rate looks wrong"
    return [TrialRequest(lattice.lr(position), seed, why)]


def outcomes(results: Mapping[tuple[float, int], TrialResult], rules: Rules) -> Seen:
    """Return :func:`outcome` of every trial, by learning rate and seed."""
    return {place: outcome(result, rules.objective) for place, result in results.items()}


def outcome(result: TrialResult, objective: Objective) -> TrialOutcome:
    """Return what the search needs to know about a trial."""
    cost = objective.cost(result)
    target = objective.judged or result.config.target
    values = result.values(target.metric) or [math.nan]
    first, last = (target.distance(value) for value in (values[0], values[-1]))
    share = 0.0 if math.isfinite(cost) else last / first if first > 0 else math.inf
    gone = result.status in (TrialStatus.DIVERGED, TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)
    return TrialOutcome(
        cost=cost,
        distance=share if math.isfinite(share) and not gone else math.inf,
        tells=result.status not in (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY),
    )
