"""Compare batch sizes at equal examples: the final metric, and up to which batch size it is as good as the best."""

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import stdtrit

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.comparison import Standing, largest_within
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.objective import Losses
from analysis.estimate.scopes import differing
from analysis.formatting import number, plain, plural, shown
from analysis.present.findings import Findings
from analysis.quantities import OPEN, Array, Quantity
from analysis.read.groups import Group
from analysis.read.results import load
from cbs.errors import ConfigError
from cbs.trial.record import AT_BUDGET
from extensions.budget.comparisons import Equivalence, Excess, Pair, SizeDoubling, doublings, equivalence, pair
from extensions.budget.reading import Spent, side_by_side, spent

# Default margin of a metric in nats, that of the published rule of `cbs local` (Merrill et al., arXiv 2505.23971); for
# other metrics it is the fraction `SHARE` of the best value, by hand.
NATS = 0.01
SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class SizeAtBudget:
    """One batch size at one budget.

    Attributes:
        batch_size: examples per step.
        steps: updates to the budget.
        metric: metric at the best learning rate, including learning rates between those that were run.
        per_seed: metric of every seed at the best learning rate that was run.
        best_lr: the best learning rate that was run; ``None`` if the trials do not state it.
        at_grid_edge: whether it is the lowest or the highest, so that a better one may lie beyond.
        seeds: number of seeds that ended at the best learning rate.
        failed: number of its seeds that ended without a value.
        excess: difference between the loss and the best one of all batch sizes.
        basin: ratio of the highest to the lowest learning rate within the margin of this batch size's best; ``None`` if
            the grid ends before.
        between: uncertainty of what a learning rate between those that were run would save.
        grid: learning rates that were run, with the mean metric over seeds; not finite if one diverged.
        warmup: number of warmup steps of the learning rate.
        others: further metrics that trials recorded, at their ends at the best learning rate: mean over seeds with
            Student's t interval; none of runs that went on beyond the budget.
    """

    batch_size: int
    steps: int
    metric: Quantity
    per_seed: tuple[float, ...]
    best_lr: float | None
    at_grid_edge: bool
    seeds: int
    failed: int
    excess: Excess
    basin: float | None
    between: float
    grid: tuple[tuple[float, float], ...] = field(repr=False)
    warmup: float = 0.0
    others: dict[str, Quantity] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OptimizerAtBudget:
    """One optimizer at one budget.

    Attributes:
        group: the trials of the optimizer.
        optimizer: its name, with the settings that distinguish it from others.
        sizes: results in order of increasing batch size.
        equivalence: which batch sizes are as good as the best.
        doublings: cost of the next larger batch size, see :class:`SizeDoubling`.
        verdict: ``ok``, or what speaks against the answer.
        advice: what to do about the verdict.
        constant: whether learning rates were constant, so that one run also gives every smaller budget.
    """

    group: Group = field(repr=False)
    optimizer: str
    sizes: tuple[SizeAtBudget, ...]
    equivalence: Equivalence
    doublings: tuple[SizeDoubling, ...]
    verdict: Verdict
    advice: str
    constant: bool

    @property
    def standing(self) -> str:
        """The equivalence in words."""
        sizes: dict[Standing, list[str]] = {}
        for each in self.sizes:
            sizes.setdefault(each.excess.standing, []).append(str(each.batch_size))
        more = [each.excess.more_seeds for each in self.sizes if each.excess.more_seeds is not None]
        parts = [f"{standing}: {', '.join(sizes[standing])}" for standing in Standing if standing in sizes]
        return "; ".join(parts) + (f" (about {plural(min(more), 'more seed')} would tell the nearest)" if more else "")

    def to_json(self) -> dict[str, Any]:
        return {"sweep": self.group.sweep} | shown(self) | {"constant_learning_rates": self.constant}


@dataclass(frozen=True, kw_only=True)
class AtBudget:
    """The optimizers of one workload and metric at one budget.

    Attributes:
        budget: number of examples.
        margin: difference from the best loss up to which a loss is as good, in the unit of the metric; ``within`` is
            how it was requested.
    """

    title: str = field(repr=False)
    workload: str
    metric: str
    direction: str
    metric_unit: str
    example_unit: str
    tokens_per_example: int | None
    budget: float
    margin: float
    within: str
    optimizers: tuple[OptimizerAtBudget, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, kw_only=True)
class Budgets(Findings):
    """Result of :func:`budget`, with one entry per workload, metric and budget."""

    budgets: tuple[AtBudget, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"confidence": self.config.confidence, "budgets": plain(self.budgets), "notes": list(self.notes)}


def budget(
    *paths: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    at: Sequence[float] = (),
    within: str | None = None,
    metric: str | None = None,
) -> Budgets:
    """Compare the final metric at equal budgets, per optimizer and budget.

    Args:
        paths: sweeps, or folders of sweeps.
        config: configuration of the analysis.
        at: budgets in examples to read from curves of constant learning rates; empty for the ends of the runs.
        within: margin above the best loss up to which a loss is as good: in the unit of the metric, ``0.01``, or as a
            fraction of the best value, ``1%``. ``None`` for :data:`NATS` if the metric is in nats, otherwise
            :data:`SHARE`.
        metric: as for :func:`analysis.read.results.load`.

    Raises:
        ConfigError: if an argument is out of its domain, budgets differ, or ``at`` is given although rates decay.
        ResultsError: if there are no usable results, no run is at a budget, or the metric is missing.
    """
    if not paths:
        raise ConfigError("give at least one results folder")
    if within is not None:
        _margin(within, 1.0)
    results = load(*paths, metric=metric)
    notes: list[str] = [*results.notes, *differing(results.groups)]
    runs = spent(results, at, config, notes)
    budgets = []
    for scope in side_by_side(runs):
        first = scope[0]
        best = min(float(entry.losses.values.min()) for entry in scope)
        asked = within or (f"{NATS:g}" if first.group.metric_unit.startswith("nats") else f"{100 * SHARE:g}%")
        margin = _margin(asked, best)
        names = _names(scope)
        # pairs first, as they know only losses: what follows is of one optimizer each
        pairs = [
            pair((name, other), one.losses, two.losses, config)
            for (one, name), (two, other) in itertools.combinations(zip(scope, names, strict=True), 2)
        ]
        entries = [
            _answer(entry, name, margin, [each for each in runs if _same(each, entry)], config)
            for entry, name in zip(scope, names, strict=True)
        ]
        budgets.append(
            AtBudget(
                title=f"{number(first.budget)} {first.group.example_unit}s",
                workload=first.group.workload,
                metric=first.group.target.metric,
                direction=first.group.target.direction,
                metric_unit=first.group.metric_unit,
                example_unit=first.group.example_unit,
                tokens_per_example=first.group.tokens_per_example,
                budget=first.budget,
                margin=margin,
                within=asked,
                optimizers=tuple(entries),
                pairs=tuple(each for each in pairs if each.at),
            )
        )
    return Budgets(config=config, budgets=tuple(budgets), notes=tuple(dict.fromkeys(notes)))


def _margin(text: str, best: float) -> float:
    """Return the margin in the unit of the metric; a fraction refers to the best value."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"--within {text}: give a number above 0 in the unit of the metric, or a share as in 1%")
    return value * abs(best) if text.strip().endswith("%") else value


def _names(scope: Sequence[Spent]) -> list[str]:
    """Return names that distinguish the optimizers of one scope."""
    # the sweep tells apart what nothing else does; then the settings of the budget, too
    names = [entry.group.at_any_budget for entry in scope]
    for name in ("at_any_budget", "optimizer"):
        if len(set(names)) < len(names):
            names = [f"{getattr(entry.group, name)}, {entry.group.sweep}" for entry in scope]
    return names


def _same(one: Spent, other: Spent) -> bool:
    """Return whether two entries are of the same runs at different budgets."""
    return one is not other and one.trains == other.trains and one.group.workload == other.group.workload


def _answer(
    entry: Spent, name: str, margin: float, others: Sequence[Spent], config: AnalysisConfig
) -> OptimizerAtBudget:
    equal = equivalence(entry.losses, margin, config.confidence)
    costs = doublings(entry, others, config.confidence)
    sizes = tuple(_size(entry, index, equal.excesses[index], margin, config) for index in range(len(entry.studies)))
    verdict, advice = _verdict(sizes, entry.losses, margin)
    return OptimizerAtBudget(
        group=entry.group,
        optimizer=name,
        sizes=sizes,
        equivalence=equal,
        doublings=costs,
        verdict=verdict,
        advice=advice,
        constant=entry.constant,
    )


def _size(entry: Spent, index: int, excess: Excess, margin: float, config: AnalysisConfig) -> SizeAtBudget:
    study, table, sign, best = entry.studies[index], entry.tables[index], entry.group.target.sign, entry.losses
    winner, edge = study.winner, bool(best.edges[index])
    assert winner is not None
    named = bool(np.isfinite(study.lrs).all())
    rows = sign * np.append(best.values[index], best.drawn[:, index])
    metric = Quantity.of_draws(rows, config.confidence).opened(sign * edge)  # a better rate may lie beyond
    means = _means(table, study.ran, winner)
    return SizeAtBudget(
        batch_size=study.batch_size,
        steps=round(entry.budget / study.batch_size),
        metric=metric,
        per_seed=tuple((sign * table[winner][np.isfinite(table[winner])]).tolist()),
        best_lr=float(study.lrs[winner]) if named else None,
        at_grid_edge=edge,
        seeds=int(best.seeds[index]),
        failed=int((study.ran[winner] & ~np.isfinite(table[winner])).sum()),
        excess=excess,
        basin=_basin(study.lrs, means, margin, winner) if named else None,
        between=float(best.between[index]),
        grid=tuple((float(lr), sign * float(mean)) for lr, mean in zip(study.lrs, means, strict=True)),
        warmup=study.warmup,
        others=_others(entry, study.trials[winner], config.confidence),
    )


def _others(entry: Spent, trials: Array, confidence: float) -> dict[str, Quantity]:
    """Return the means of the further metrics at the ends of some trials, those of them that ended at the budget."""
    rows = entry.rows.loc[[row for row in trials if row >= 0]]
    seen = rows["final_step"] * rows["batch_size"]
    ended = rows["final_metrics"][abs(seen / entry.budget - 1) <= AT_BUDGET]
    means = {}
    for name in dict.fromkeys(name for each in ended for name in each):
        values = np.array([each[name] for each in ended if math.isfinite(each.get(name, math.nan))])
        if len(values):
            mean, ends = float(values.mean()), OPEN
            if len(values) > 1:
                error = float(values.std(ddof=1)) / math.sqrt(len(values))
                reach = error * float(stdtrit(len(values) - 1, 0.5 + confidence / 2))
                ends = mean - reach, mean + reach
            means[name] = Quantity(mean, ends)
    return means


def _means(losses: Array, ran: Array, winner: int) -> Array:
    """Return the mean of every learning rate, from its differences to the winner on the seeds that both ran; not finite
    if one of its runs failed."""
    with np.errstate(invalid="ignore"):
        apart = np.where(np.isfinite(losses) & np.isfinite(losses[winner]), losses - losses[winner], np.nan)
    both = np.isfinite(apart)
    mean = np.where(both, apart, 0.0).sum(axis=1) / np.maximum(both.sum(axis=1), 1)
    failed = (ran & ~np.isfinite(losses)).any(axis=1)
    whole = float(losses[winner][np.isfinite(losses[winner])].mean())
    return np.where(failed | ~both.any(axis=1), np.nan, whole + mean)


def _basin(lrs: Array, means: Array, margin: float, winner: int) -> float | None:
    """Return the ratio of the highest to the lowest learning rate at which the mean, interpolated in ln lr, is within
    the margin of the winner's; a failed learning rate ends the range halfway to it."""
    width = 0.0
    for side in (1, -1):
        logs, over = side * np.log(lrs)[winner::side], means[winner::side] - means[winner] - margin
        # the mirror image of what is before it, which passes the margin halfway
        over[1:] = np.where(np.isfinite(over[1:]), over[1:], -over[:-1])
        width += float(largest_within(logs, over[None], 0.0, np.zeros(1))[0]) - logs[0]
    return math.exp(width) if math.isfinite(width) else None


def _verdict(sizes: Sequence[SizeAtBudget], losses: Losses, margin: float) -> tuple[Verdict, str]:
    edges = [str(size.batch_size) for size in sizes if size.at_grid_edge]
    if edges:
        return (
            Verdict.AT_GRID_EDGE,
            f"at batch size {', '.join(edges)} a learning rate beyond those that were run may be better: run some",
        )
    if len(sizes) < 2:
        return Verdict.TOO_FEW_BATCH_SIZES, "run at least two, a factor of two apart"
    if not len(losses.drawn):
        return Verdict.TOO_FEW_SEEDS, "with one seed and fewer than four batch sizes the scatter of losses is unknown"
    if not losses.freedom:
        return Verdict.TOO_FEW_SEEDS, "the noise is read off the scatter about a smooth curve; run two or more seeds"
    if failed := [f"{size.batch_size} ({size.failed} of {size.failed + size.seeds})" for size in sizes if size.failed]:
        return (
            Verdict.SOME_FAILED,
            f"at the best learning rate of batch size {', '.join(failed)}: the loss there is that of the other seeds "
            "only; look at the runs that failed",
        )
    if coarse := [size for size in sizes if size.between > margin]:
        told = ", ".join(f"{size.batch_size} (around {size.best_lr:.3g})" for size in coarse)
        return (
            Verdict.COARSE_RATES,
            f"one between those that were run may save more than the margin: run some at batch size {told}; a sweep "
            f"searches them so finely with --set within={margin:.2g}",
        )
    if all(math.isnan(lr) for size in sizes for lr, _ in size.grid) or all(len(size.grid) < 2 for size in sizes):
        return Verdict.NOT_TUNED, "one learning rate per batch size: each loss is at that one, not at the best"
    return Verdict.OK, ""
