"""Compare the final metric under batch schedules with that of constant batch sizes, at equal examples."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Array, Interval, Quantity, percentiles
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.findings import Findings
from analysis.estimate.objective import draw_losses, loss_studies
from analysis.estimate.studies import Study, one_study
from analysis.plain import plain
from analysis.read.groups import Group
from analysis.read.results import load
from cbs.errors import ResultsError
from cbs.registry.choices import labels
from cbs.trial.record import TrialStatus
from cbs.trial.trial_files import METRIC, read_record, read_steps

ALIKE = 0.02
"""Relative difference of the examples of two runs above which they count as different."""


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

    def less(self, batch_size: int) -> LossDifference | None:
        """Return the difference from a constant batch size, or ``None``."""
        return next((each for each in self.against if each.batch_size == batch_size), None)


@dataclass(frozen=True, kw_only=True)
class ScheduleLosses(Findings):
    """Result of :func:`schedule_losses`; ``metric`` is the name of what was compared."""

    entries: tuple[ScheduleLoss, ...]
    metric: str

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"entries": plain(self.entries)}


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
    results = load(path)
    entries: list[ScheduleLoss] = []
    notes = [note for note in results.notes if "with a batch schedule" not in note]
    names = dict(zip(map(id, results.scheduled), labels([each.choice for each in results.scheduled]), strict=True))
    for index, group in enumerate(results.groups):
        if group.stops_at_target:
            raise ResultsError(f"{group.sweep}: trials end at a target; run the sweep with --budget")
        parts = [("constant", int(size), _ends(part, metric))
                 for size, part in results.of_group(index).groupby("batch_size", sort=True)]  # fmt: skip
        parts += [(names[id(scheduled)], int(size), _ends(part, metric))
                  for scheduled in results.scheduled if scheduled.reference == index
                  for size, part in scheduled.trials.groupby("batch_size", sort=True)]  # fmt: skip
        if all(name == "constant" for name, _, _ in parts):
            continue
        entries += _entries(group, parts, config, notes)
    if not entries and results.scheduled:
        raise ResultsError(f"nothing to compare at {path}: {'; '.join(notes) or 'no run saw all of its examples'}")
    if not entries:
        raise ResultsError(
            f"no batch schedule at {path} has constant batch sizes to compare with that differ in nothing else; also "
            "run the sweep without --schedule"
        )
    compared = metric or results.groups[0].target.metric
    return ScheduleLosses(config=config, entries=tuple(entries), metric=compared, notes=tuple(notes))


def _ends(part: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Return the trials with their final loss, NaN if they did not see all examples, and the number of examples they
    saw."""
    rows = [_end(Path(folder), metric) for folder in part["folder"]]
    values, seen, signs = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    ran = part["status"].isin([str(TrialStatus.BUDGET_EXHAUSTED), str(TrialStatus.REACHED)]).to_numpy()
    return part.assign(ended=np.where(ran, signs * values, np.nan), examples_seen=seen, sign=signs)


def _end(folder: Path, metric: str | None) -> tuple[float, float, float]:
    """Return metric and examples of the last evaluation, and -1 if a higher metric is better, otherwise 1."""
    table, summary = read_record(folder / "record.parquet")
    target = summary["config"]["target"]
    name = "value" if metric in (None, target["metric"]) else f"{METRIC}{metric}"
    if name not in table.column_names:
        there = [each.removeprefix(METRIC) for each in table.column_names if each.startswith(METRIC)]
        raise ResultsError(f"{folder} has no metric {metric!r}; it has {', '.join([target['metric'], *there])}")
    side = target["direction"] if name == "value" else summary.get("directions", {}).get(metric)
    return float(table[name][-1].as_py()), float(table["examples"][-1].as_py()), -1.0 if side == "above" else 1.0


def _entries(
    group: Group, parts: list[tuple[str, int, pd.DataFrame]], config: AnalysisConfig, notes: list[str]
) -> list[ScheduleLoss]:
    sign = float(parts[0][2]["sign"].iloc[0])
    kept: list[tuple[str, int, pd.DataFrame, Study, Array]] = []
    for name, size, part in parts:
        study = one_study(group, size, part, group.target, np.full(len(part), np.nan))
        ended = part["ended"].to_dict()
        table = np.array([ended.get(row, np.nan) for row in study.trials.ravel()]).reshape(study.trials.shape)
        if np.isfinite(table).any():
            kept.append((name, size, part, study, table))
        else:
            notes.append(f"{group.optimizer}, {name} at batch size {size}: no run saw all of its examples")
    if not kept:
        return []
    # what seeds share is a function of the batch size, so the first batch sizes have to increase
    order = sorted(range(len(kept)), key=lambda place: kept[place][1])
    kept = [kept[place] for place in order]
    studies, scale = loss_studies([study for *_, study, _ in kept], [table for *_, table in kept])
    found = draw_losses(studies, scale, config, curve=False)
    if not found.freedom:
        notes.append(f"{group.optimizer}: one seed, so the scatter of losses is unknown; run two or more")
    places = {size: place for place, (name, size, *_) in enumerate(kept) if name == "constant"}
    steps = [_mean(part, "final_step") for _, _, part, _, _ in kept]
    examples = [_mean(part, "examples_seen") for _, _, part, _, _ in kept]
    most = max(examples, default=0.0)
    for (name, size, part, *_), seen in zip(kept, examples, strict=True):
        if most - seen > max(ALIKE * most, 2 * _last_batch(name, size, part)):
            raise ResultsError(
                f"different budgets in {group.sweep}: {name} from batch size {size} saw {seen:g} examples of {most:g}"
            )
        if most - seen > ALIKE * most:
            notes.append(
                f"{group.optimizer}, {name} from batch size {size}: {100 * (1 - seen / most):.2g} % of the examples "
                "at the end do not fill a batch and are not used, so its loss is slightly too high"
            )
    losses, drawn, edges = sign * found.values, sign * found.drawn, found.edges.tolist()
    entries = []
    for place, (name, size, _, _, _) in enumerate(kept):
        apart = {other: drawn[:, place] - drawn[:, at] for other, at in places.items() if at != place}
        study, winner = studies[place], studies[place].winner or 0
        entries.append(
            ScheduleLoss(
                sweep=group.sweep,
                optimizer=group.optimizer,
                schedule=name,
                batch_size=size,
                metric=Quantity(
                    float(losses[place]), _ends_of(drawn[:, place], config.confidence, sign * edges[place])
                ),
                against=tuple(
                    LossDifference(
                        value=float(losses[place] - losses[places[other]]),
                        interval=_ends_of(rows, config.confidence, sign * edges[place], -sign * edges[places[other]]),
                        batch_size=other,
                        probability_smaller=(
                            None if edges[place] or edges[places[other]] or not len(rows) else float((rows < 0).mean())
                        ),
                        steps_saved=1.0 - steps[place] / steps[places[other]],
                    )
                    for other, rows in apart.items()
                ),
                steps=steps[place],
                examples=examples[place],
                best_lr=float(study.lrs[winner]),
                at_grid_edge=edges[place],
                seeds=int(found.seeds[place]),
            )
        )
    return [entries[order.index(place)] for place in range(len(order))]


def _last_batch(name: str, size: int, part: pd.DataFrame) -> float:
    """Return the examples of the last step; a schedule ends with the last step that fits into the budget."""
    if name == "constant":
        return float(size)
    folder = Path(part.loc[part["ended"].notna(), "folder"].iloc[0])
    return float(read_steps(folder / "steps.parquet")[0]["batch_size"][-1])


def _mean(part: pd.DataFrame, column: str) -> float:
    """Return the mean over the runs that reached their end."""
    return float(part.loc[part["ended"].notna(), column].mean())


def _ends_of(rows: Array, confidence: float, *beyond: float) -> Interval:
    """Return the interval; open below for a positive entry of ``beyond``, above for a negative one."""
    if not len(rows):
        return (None, None)
    low, high = percentiles(rows, confidence).tolist()
    return (None if max(beyond) > 0 else low, None if min(beyond) < 0 else high)
