"""Compare the final metric under batch schedules with that of constant batch sizes, at equal examples."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.objective import common_budget, draw_losses, final_losses, loss_studies
from analysis.estimate.studies import Study
from analysis.present.findings import Findings
from analysis.quantities import Array, Quantity
from analysis.read.groups import Group
from analysis.read.results import load
from cbs.errors import ResultsError
from cbs.registry.choices import labels
from cbs.trial.record import AT_BUDGET, TrialStatus

CONSTANT = "constant"  # Name of the schedule of a constant batch size


@dataclass(frozen=True, kw_only=True)
class LossDifference(Quantity):
    """The final metric minus that of a constant batch size; negative if it is smaller.

    Attributes:
        batch_size: the constant batch size.
        probability_smaller: probability that the metric is smaller; ``None`` without draws, or if the best learning
            rate of either is at the edge of its grid.
        steps_saved: updates saved, as a fraction of those of the constant batch size.
    """

    batch_size: int
    probability_smaller: float | None
    steps_saved: float


@dataclass(frozen=True, kw_only=True)
class ScheduleLoss:
    """One schedule starting from one batch size, or a constant batch size.

    Attributes:
        sweep: name of the sweep.
        optimizer: name of the optimizer.
        schedule: name, with the options that distinguish it from others; ``constant`` for none.
        batch_size: the first batch size.
        metric: final metric at the best learning rate.
        against: comparison with every other constant batch size of the sweep.
        steps: mean number of updates.
        examples: number of examples that every run saw.
        best_lr: the best learning rate that was run.
        at_grid_edge: whether it is the lowest or the highest of several.
        seeds: number of seeds at the best learning rate.
    """

    sweep: str
    optimizer: str
    schedule: str
    batch_size: int
    metric: Quantity
    against: tuple[LossDifference, ...]
    steps: float
    examples: float
    best_lr: float
    at_grid_edge: bool
    seeds: int


@dataclass(frozen=True, kw_only=True)
class ScheduleLosses(Findings):
    """Result of :func:`schedule_losses`; ``metric`` is the name of what was compared."""

    entries: tuple[ScheduleLoss, ...]
    metric: str


def schedule_losses(
    path: str | os.PathLike[str], config: AnalysisConfig = DEFAULT, *, metric: str | None = None
) -> ScheduleLosses:
    """Compare the final metric under every batch schedule of a sweep with a budget with that of constant batch sizes.

    A run counts at the end of its budget; one that diverged is worse than all others. The learning rate of each is the
    best by the mean over seeds; intervals include that choice and the noise of seeds, pooled over all that is compared.
    If it is the lowest or the highest that was run, one beyond may be better, and that end of the interval is open.

    Args:
        path: a sweep whose trials end with a budget, with schedules and the batch sizes from which they start.
        config: configuration of the analysis.
        metric: one of the metrics that the trials recorded; ``None`` for that of the target.

    Raises:
        ResultsError: if no schedule has a comparable constant batch size, trials ended at a target or at different
            budgets, or a trial has no such metric.
    """
    results = load(path, metric=metric)
    entries: list[ScheduleLoss] = []
    notes = [note for note in results.notes if "with a batch schedule" not in note]
    names = labels([each.choice for each in results.scheduled])
    for index, group in enumerate(results.groups):
        if group.stops_at_target:
            raise ResultsError(f"{group.sweep}: trials end at a target; run the sweep with --budget")
        scheduled = [(name, each.trials) for name, each in zip(names, results.scheduled, strict=True)
                     if each.reference == index]  # fmt: skip
        if scheduled:
            constant = results.of_group(index)
            constant = constant.assign(
                values=[results.curve(row)[1] for row in constant.index],
                examples=[[seen] for seen in constant["final_step"] * constant["batch_size"]],
            )
            entries += _entries(group, [(CONSTANT, constant), *scheduled], config, notes)
    if not entries and results.scheduled:
        raise ResultsError(f"nothing to compare at {path}: {'; '.join(notes) or 'no run saw all of its examples'}")
    if not entries:
        raise ResultsError(
            f"no batch schedule at {path} has constant batch sizes to compare with that differ in nothing else; also "
            "run the sweep without --schedule"
        )
    metric = results.groups[0].target.metric
    return ScheduleLosses(config=config, entries=tuple(entries), metric=metric, notes=tuple(notes))


class _Condition(NamedTuple):
    """One schedule, or none, at one first batch size: its trials that saw all of their examples, and the losses
    ``[L, N]`` of its study."""

    name: str
    batch_size: int
    ended: pd.DataFrame
    study: Study
    losses: Array

    @property
    def unfilled(self) -> float:
        """Most examples that a run may leave unused at its end: a schedule ends with the last step that fits into the
        budget, and the next one would have been at most twice as large."""
        if self.name == CONSTANT:
            return 0.0
        (*_, before, seen), (*_, earlier, last) = ((0, *self.ended[name].iloc[0]) for name in ("examples", "steps"))
        return 2.0 * (seen - before) / (last - earlier)


def _conditions(group: Group, parts: Sequence[tuple[str, pd.DataFrame]], notes: list[str]) -> Iterator[_Condition]:
    """Yield the conditions of which a run ended."""
    for name, trials in parts:
        ran = trials[trials["status"].isin([TrialStatus.BUDGET_EXHAUSTED, TrialStatus.REACHED])]
        last = (group.target.sign * ran["values"].map(lambda values: values[-1])).dropna()
        for size, part, study, losses in final_losses(group, trials, last):
            if np.isfinite(losses).any():
                yield _Condition(name, size, part.loc[part.index.intersection(last.index)], study, losses)
            else:
                notes.append(f"{group.optimizer}, {name} at batch size {size}: no run saw all of its examples")


def _entries(
    group: Group, parts: Sequence[tuple[str, pd.DataFrame]], config: AnalysisConfig, notes: list[str]
) -> list[ScheduleLoss]:
    named = list(_conditions(group, parts, notes))
    if not named:
        return []
    # what seeds share is a function of the batch size, so the first batch sizes have to increase
    order = sorted(range(len(named)), key=lambda index: named[index].batch_size)
    kept = [named[index] for index in order]
    studies, scale = loss_studies([each.study for each in kept], [each.losses for each in kept])
    found = draw_losses(studies, scale, config, curve=False)
    if not found.freedom:
        notes.append(f"{group.optimizer}: one seed, so the scatter of losses is unknown; run two or more")
    steps = [float(each.ended["final_step"].mean()) for each in kept]
    examples = [float(each.ended["examples"].map(lambda seen: seen[-1]).mean()) for each in kept]
    most, unfilled = max(examples), np.array([each.unfilled for each in kept])
    if common_budget(np.array(examples), np.array([each.batch_size for each in kept]), unfilled) is None:
        least = int(np.argmin(examples + unfilled))
        raise ResultsError(
            f"different budgets in {group.sweep}: {kept[least].name} from batch size {kept[least].batch_size} saw "
            f"{examples[least]:g} examples of {most:g}"
        )
    for each, seen in zip(kept, examples, strict=True):
        if most - seen > AT_BUDGET * most:
            notes.append(
                f"{group.optimizer}, {each.name} from batch size {each.batch_size}: {100 * (1 - seen / most):.2g} % of "
                "the examples at the end do not fill a batch and are not used, so its loss is slightly too high"
            )
    sign = group.target.sign
    rows, beyond = sign * np.vstack([found.values, found.drawn]), sign * found.edges

    def against(index: int, other: int) -> LossDifference:
        apart = rows[:, index] - rows[:, other]
        known = len(apart) > 1 and not found.edges[[index, other]].any()
        return LossDifference(
            **vars(Quantity.of_draws(apart, config.confidence).opened(beyond[index], -beyond[other])),
            batch_size=kept[other].batch_size,
            probability_smaller=float((apart[1:] < 0).mean()) if known else None,
            steps_saved=1.0 - steps[index] / steps[other],
        )

    constant = [index for index, each in enumerate(kept) if each.name == CONSTANT]
    entries = [
        ScheduleLoss(
            sweep=group.sweep,
            optimizer=group.optimizer,
            schedule=each.name,
            batch_size=each.batch_size,
            metric=Quantity.of_draws(rows[:, index], config.confidence).opened(beyond[index]),
            against=tuple(against(index, other) for other in constant if other != index),
            steps=steps[index],
            examples=examples[index],
            best_lr=float(each.study.lrs[studies[index].winner or 0]),
            at_grid_edge=bool(found.edges[index]),
            seeds=int(found.seeds[index]),
        )
        for index, each in enumerate(kept)
    ]
    return [entries[order.index(index)] for index in range(len(order))]
