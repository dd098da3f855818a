"""How the best learning rate depends on the batch size, and how the way it is chosen affects the critical batch
size.

What the critical batch size would be if the learning rate had not been tuned at every batch size.

The existing trials are used: either one learning rate for all batch sizes, or one that follows the batch size by a rule
from the best one at a reference. The learning rate that a rule asks for is replaced by the nearest one of the grid, at
most half a grid step away. A cell that was never run is missing, and reported; it does not count as failed. If a whole
batch size is missing there is no critical batch size: a search runs only learning rates that may be best, so the
remaining batch sizes are those at which the rule costs least. A cell that ran and did not reach the target is a bound,
as in every estimate.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import Reading, answers, estimates
from analysis.estimate.learning_rate_law import Factor, LearningRateLaw, learning_rate_law
from analysis.estimate.objective import common_budget, final_losses, loss_studies
from analysis.estimate.result import Answer
from analysis.estimate.studies import NOT_RUN, Study
from analysis.estimate.suggest.earlier_command import adding
from analysis.formatting import plain, plural, shown
from analysis.present.findings import Findings
from analysis.quantities import UNKNOWN, Quantity
from analysis.read.results import Results, load
from cbs.errors import ConfigError
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target

# Runs whose last loss is none at their planned end, so that it ranks nothing
_UNFINISHED = (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.PRUNED)

# Multiples of the batch size for which factors are given
MULTIPLES = (2, 4, 8)

# Exponent of the batch size to which the learning rate is proportional, by rule
RULES = {"square-root rule": 0.5, "linear rule": 1.0}

_ROUNDING = 1e-9  # In ln lr; the middle between two belongs to both


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Results for one optimizer at one target.

    The factors (none without a law) start from the critical batch size, if known, and from the largest batch size with
    a known optimum, and go to each of :data:`MULTIPLES`.
    """

    answer: Answer = field(repr=False)
    law: LearningRateLaw
    factors: tuple[Factor, ...]
    protocols: tuple[Protocol, ...]

    def to_json(self) -> dict[str, Any]:
        return self.answer.group.whose | {"target": self.answer.target.to_json()} | shown(self)


@dataclass(frozen=True, kw_only=True)
class LearningRates(Findings):
    """Result of :func:`learning_rates`, with one entry per sweep, optimizer and target."""

    entries: tuple[LearningRate, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"learning_rates": plain(self.entries)}


def learning_rates(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    reference: int | None = None,
) -> LearningRates:
    """Fit the law of the best learning rate, and return factors for larger batches and protocols, per optimizer and
    target.

    ``path``, ``config``, ``targets`` and ``metric`` are as for :func:`analysis.analyze`, including errors;
    ``reference`` is as for :func:`extensions.lr.learning_rates.protocols`.
    """
    results = load(path, metric=metric)
    entries, notes = [], [*results.notes]
    alone = [results.ends_alone(index) for index in range(len(results.groups))]
    if all(alone):
        entries = [_by_ends(results, index, config) for index in range(len(alone))]
        notes.append("one evaluation per run: learning rates are ranked by the metric there, not by steps to a target")
    for answer in () if all(alone) else answers(results, config, targets=targets, noise=False):
        law = learning_rate_law(answer.studies, config)
        unranked = [str(study.batch_size) for study in answer.studies if study.unranked]
        if unranked:
            notes.append(
                f"{answer.group.optimizer}: at batch size {', '.join(unranked)} several learning rates were past the "
                "target when first evaluated, and which is best is not known: evaluate earlier, or choose a harder one"
            )
        starts = [size for size in (answer.critical_batch_size, *law.inside[-1:]) if size is not None]
        entries.append(_entry(answer, law, starts, protocols(answer, reference)))
    return LearningRates(config=config, entries=tuple(entries), notes=tuple(notes))


def _entry(answer: Answer, law: LearningRateLaw, starts: Sequence[float], ways: tuple[Protocol, ...]) -> LearningRate:
    # an edge is none where other batch sizes say where the best learning rate lies, as the verdict of the answer has it
    known = {point.batch_size for point in answer.points if point.at_grid_edge is False}
    law = replace(law, optima=tuple(replace(best, believed=best.batch_size in known) for best in law.optima))
    factors = [law.factor(size, multiple) for size in starts for multiple in MULTIPLES]
    return LearningRate(answer=answer, law=law, factors=tuple(filter(None, factors)), protocols=ways)


def _by_ends(results: Results, index: int, config: AnalysisConfig) -> LearningRate:
    """Return the best learning rates of a group by the metric at the only evaluation of each run; such runs have no
    critical batch size, and so no protocols."""
    group = results.groups[index]
    studies = _end_studies(results, index)
    law = learning_rate_law(studies, config, math.inf)
    answer = Answer(
        group=group,
        target=group.target,
        config=config,
        studies=tuple(studies),
        points=(),
        draws=None,
        definitions={},
        verdict=Verdict.NOT_REACHED,
        advice="",
    )
    return _entry(answer, law, law.inside[-1:], ())


def _end_studies(results: Results, index: int) -> list[Study]:
    """Return the studies of the losses of a group whose runs have one evaluation each, in place of steps.

    Raises:
        ConfigError: if runs of a batch size differ in length, so that their losses do not rank learning rates.
    """
    group, rows = results.groups[index], results.of_group(index)
    ended = ~rows["status"].isin(_UNFINISHED)
    for size, lengths in rows.loc[ended & (rows["status"] != TrialStatus.DIVERGED), "final_step"].groupby(
        rows["batch_size"]
    ):
        if common_budget(lengths.to_numpy() * size, np.array(size)) is None:
            raise ConfigError(
                f"{group.optimizer} in {group.sweep}: runs at batch size {size} end after {lengths.min()} to "
                f"{lengths.max()} steps, and losses of unequal runs do not rank learning rates; import one length"
            )
    sign = -1.0 if group.target.direction == "above" else 1.0
    values = sign * results.ends.reindex(rows.index[ended]).replace([np.inf, -np.inf], np.nan)
    studies, tables = [], []
    for _, _, study, table in final_losses(group, rows, values):
        if np.isfinite(table).any():
            studies.append(study)
            tables.append(table)
    return loss_studies(studies, tables)[0]


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
