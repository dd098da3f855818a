"""What the critical batch size would be if the learning rate had not been tuned at every batch size.

The existing trials are used: either one learning rate for all batch sizes, or one that follows the batch size by a rule
from the best one at a reference. The learning rate that a rule asks for is replaced by the nearest one of the grid, at
most half a grid step away. A cell that was never run is missing, and reported; it does not count as failed. If a whole
batch size is missing there is no critical batch size: a search runs only learning rates that may be best, so the
remaining batch sizes are those at which the rule costs least. A cell that ran and did not reach the target is a bound,
as in every estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import UNKNOWN, Quantity
from analysis.estimate.estimates import Reading, estimates
from analysis.estimate.result import Answer
from analysis.estimate.studies import NOT_RUN, Study
from analysis.estimate.suggest.earlier_command import adding
from analysis.phrases import plural
from analysis.plain import shown
from cbs.errors import ConfigError

RULES = {"square-root rule": 0.5, "linear rule": 1.0}
"""Exponent of the batch size to which the learning rate is proportional, by rule."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Missing:
    """Cells of a protocol that were never run and that one sweep can run.

    Attributes:
        batch_sizes: batch sizes in examples, increasing.
        seeds: seeds missing at all of these batch sizes.
        command: shell command; empty if the sweep was not run by ``cbs sweep``.
    """

    lr: float
    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    command: str


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One way to choose the learning rate, and its answer from the same trials.

    Attributes:
        reference: batch size from whose best learning rate it starts; ``None`` if it has none.
        lrs: learning rate by batch size, where it was run.
        answer: answer from these trials alone; of a part of the curve if batch sizes are missing.
        not_run: batch sizes at which no seed of the learning rate was run.
        missing: cells to run to complete the protocol.
    """

    name: str
    reference: int | None
    lrs: dict[int, float]
    answer: Answer = field(repr=False)
    not_run: tuple[int, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def critical_batch_size(self) -> Quantity:
        """Critical batch size in examples; no value if batch sizes are missing."""
        answer = self.answer
        return UNKNOWN if self.not_run else Quantity(answer.critical_batch_size, answer.interval)

    @property
    def examples_at_critical(self) -> Quantity:
        """Examples to target at the critical batch size; no value if batch sizes are missing."""
        return UNKNOWN if self.not_run else self.answer.examples_at_critical

    @property
    def verdict(self) -> str:
        """What speaks against the answer, in words."""
        count = len(self.not_run)
        return f"not run at {plural(count, 'batch size')}" if count else str(self.answer.verdict)

    def to_json(self) -> dict[str, Any]:
        return shown(self) | {
            "lrs": [{"batch_size": size, "lr": lr} for size, lr in self.lrs.items()],
            "critical_batch_size": self.critical_batch_size.value,
            "interval": list(self.critical_batch_size.interval),
            **self.examples_at_critical.named("examples_at_critical"),
            "verdict": self.verdict,
            "advice": self.answer.advice,
        }


def protocols(answer: Answer, reference: int | None = None) -> tuple[Protocol, ...]:
    """Return the protocols: tuned at every batch size, one learning rate for all, that of the reference, and
    :data:`RULES`.

    Only the first is returned if trials do not state their learning rate or none reached the target. The rules start
    from the batch size ``reference``; it is a ``ConfigError`` if no trial reached the target there. By default it is
    the batch size nearest the middle, in ln B, among those whose best learning rate lies inside the grid (or, if there
    is none, among all that reached the target). From there a rule is closest to both ends, and asks for the fewest
    learning rates that were never run.
    """
    best = {point.batch_size: point.best_lr for point in answer.points if point.best_lr is not None}
    tuned = Protocol(name="tuned per batch size", reference=None, lrs=best, answer=answer)
    if not best:
        return (tuned,)
    if reference is not None and reference not in best:
        raise ConfigError(
            f"batch size {reference} of {answer.group.optimizer} has no best learning rate at {answer.target}; "
            f"there are {', '.join(map(str, best))}"
        )
    sizes = [study.batch_size for study in answer.studies]
    inside = [point.batch_size for point in answer.points if point.batch_size in best and not point.at_grid_edge]
    middle = math.sqrt(sizes[0] * sizes[-1])
    start = reference or min(inside or best, key=lambda size: abs(math.log(size / middle)))
    one = _counterfactual(answer, "one for all batch sizes", None, dict.fromkeys(sizes, _common(answer.studies)))
    rules = {f"that of batch size {start}": 0.0, **RULES}.items()
    scaled = {name: {size: best[start] * (size / start) ** power for size in sizes} for name, power in rules}
    return (tuned, one, *(_counterfactual(answer, name, start, wanted) for name, wanted in scaled.items()))


def _common(studies: Sequence[Study]) -> float:
    """Return the learning rate that reaches the target at the most batch sizes; among such, the one with the smallest
    mean excess of ln steps over the best learning rate of each batch size."""
    excess = []
    for study in (whole.along_lr for whole in studies):
        if study.winner is not None and not study.unranked:
            mean = pd.DataFrame(np.log(study.steps), index=study.lrs).mean(axis=1)
            excess.append((mean - mean.iloc[study.winner]).dropna())
    excesses = pd.concat(excess).groupby(level=0).agg(["size", "mean"])
    return float(excesses.sort_values(["size", "mean"], ascending=[False, True]).index[0])


def _counterfactual(answer: Answer, name: str, reference: int | None, wanted: dict[int, float]) -> Protocol:
    studies = [study.along_lr for study in answer.studies]
    grid = np.unique(np.concatenate([study.lrs for study in studies]))
    grid = grid[np.isfinite(grid)]
    lrs: dict[int, float] = {}
    kept: list[Study] = []
    missing: dict[tuple[float, tuple[int, ...]], list[int]] = {}
    for study in studies:
        candidates = snapped(wanted[study.batch_size], grid)
        ran = dict(zip(study.lrs.tolist(), ~np.isin(study.status, NOT_RUN), strict=True))
        tried = [lr for lr in candidates if lr in ran and ran[lr].any()]
        lr = (tried or candidates)[0]
        if tried:
            lrs[study.batch_size] = lr
            # without its value: a grid of one learning rate must not be reported as an edge
            one = study.at(study.lrs == lr, lrs=np.full(1, np.nan))
            kept.append(replace(one, status=np.where(np.isin(one.status, NOT_RUN), "", one.status)))
        lacking = study.seeds[~ran[lr]] if tried else study.seeds
        if len(lacking):
            missing.setdefault((lr, tuple(lacking.tolist())), []).append(study.batch_size)
    failed = "no trial with these learning rates reached the target"
    reading = Reading(target=answer.target, studies=kept, not_reached=failed)
    (estimate,) = estimates(answer.group, [reading], answer.config)
    group = answer.group
    return Protocol(
        name=name,
        reference=reference,
        lrs=lrs,
        answer=estimate,
        not_run=tuple(study.batch_size for study in studies if study.batch_size not in lrs),
        missing=tuple(
            Missing(lr, tuple(sizes), seeds, adding(group.manifest, group.folder, group.choice, sizes, seeds, [lr]))
            for (lr, seeds), sizes in missing.items()
        ),
    )


def snapped(wanted: float, grid: np.ndarray) -> list[float]:
    """Return the learning rates of the increasing ``grid`` that may stand for ``wanted``.

    They are at most half a grid step away in ln lr, the nearest first, the lower one first if two are equally near. If
    there is none, it is ``wanted`` itself, rounded to four digits.
    """
    logs, at = np.log(grid), math.log(wanted)
    middle = (logs[1:] + logs[:-1]) / 2
    edges = np.concatenate([2 * logs[:1] - middle[:1], middle, 2 * logs[-1:] - middle[-1:]]) if len(middle) else logs
    near = np.flatnonzero((edges[: len(logs)] - _ROUNDING <= at) & (at <= edges[-len(logs) :] + _ROUNDING))
    return grid[near].tolist() or [float(f"{wanted:.4g}")]
