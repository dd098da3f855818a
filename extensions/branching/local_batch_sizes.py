r"""The local critical batch size along a training run, measured by branches of its checkpoints.

Merrill et al. (arXiv 2505.23971): branches of a checkpoint train for a window of examples with k times the batch size
of the run, and the largest k whose loss does not fall behind gives the critical batch size there. Here it is estimated
with an interval, from draws of the loss over k (:mod:`extensions.branching.factors`); the published rule
stands beside.

The constant batch size that is nearest to the local one f(t) in mean square is the time average of f, which is
:math:`f(T)/(c + 1)` for :math:`f \sim t^c` (appendix D of the paper).
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.scopes import differing
from analysis.formatting import number, plain, shown
from analysis.present.findings import Findings
from analysis.quantities import UNKNOWN, Array, Quantity
from analysis.read.groups import Group
from analysis.read.results import load, read_trials
from cbs.errors import ConfigError, ResultsError
from extensions.branching.checkpoints import LocalCheckpoint, checkpoint
from extensions.branching.factors import ENOUGH, SOME, FactorCurve
from extensions.branching.reading import TunedBranches, branched, tuned

# Default tolerance of the loss, in the unit of the metric; the published rule has the same, in nats per token
TOLERANCE = 0.01

# Least tolerance as a fraction of the standard deviation of a loss over seeds, below which seeds alone differ
NOISE_SHARE = 0.5

_ALIKE = 1e-3  # Relative difference up to which two losses count as equal


@dataclass(frozen=True, kw_only=True)
class SweepCritical(Quantity):
    """The critical batch size of a sweep that trains from the start to ``target``, by ``definition``."""

    target: str
    definition: str


@dataclass(frozen=True, kw_only=True)
class LocalCurve:
    """Local critical batch size of one optimizer along its run.

    Attributes:
        group: the trials of the optimizer.
        optimizer: its name, with the settings that distinguish it from others.
        source: source of the first checkpoint, see :class:`cbs.trial.parent.Parent`.
        checkpoints: results in order of increasing examples.
        average: time average of the local critical batch size from the first checkpoint to the last, interpolated
            linearly; no value with fewer than two checkpoints, or if one of them has no value.
        exponent: c of the power law :math:`t^c` in examples through the checkpoints; no value with fewer than three.
        power_average: time average from the start by that law, :math:`f(T)/(c + 1)` with T at the last checkpoint.
        sweep: critical batch sizes of sweeps of the same optimizer from the start, in the same results.
    """

    group: Group = field(repr=False)
    optimizer: str
    source: str
    checkpoints: tuple[LocalCheckpoint, ...]
    average: Quantity
    exponent: Quantity
    power_average: Quantity
    sweep: tuple[SweepCritical, ...]

    def to_json(self) -> dict[str, Any]:
        return {"sweep_name": self.group.sweep, "workload": self.group.workload} | shown(self)


@dataclass(frozen=True, kw_only=True)
class LocalPair(Quantity):
    """Ratio of the local critical batch sizes of two optimizers, ``optimizer`` over ``other``, at equal loss.

    Attributes:
        loss: loss of a checkpoint of ``optimizer``, in the unit of the metric; the logarithm of the local critical
            batch size of ``other`` is interpolated linearly in the loss.
        probability: probability that the ratio exceeds 1; ``None`` if a draw has no value or there are none.
    """

    optimizer: str
    other: str
    loss: float
    probability: float | None


@dataclass(frozen=True, kw_only=True)
class LocalScope:
    """The optimizers of one workload and metric.

    Attributes:
        tolerance: excess loss up to which a branch has not lost, the same for all checkpoints: the larger of
            ``absolute`` and ``noise_share`` times ``noise``.
        noise: median over checkpoints of the standard deviation of a loss over seeds; ``None`` with single seeds.
    """

    workload: str
    metric: str
    metric_unit: str
    example_unit: str
    tokens_per_example: int | None
    tolerance: float
    absolute: float
    noise_share: float
    noise: float | None
    curves: tuple[LocalCurve, ...]
    pairs: tuple[LocalPair, ...]


@dataclass(frozen=True, kw_only=True)
class LocalBatchSizes(Findings):
    """Result of :func:`local`, with one scope per workload and metric; ``folder`` is that of its files, if known."""

    scopes: tuple[LocalScope, ...] = field(repr=False)
    folder: str = field(default="", repr=False)

    def written_to(self, folder: Path) -> LocalBatchSizes:
        """Return the result with the folder of its files."""
        return replace(self, folder=str(folder))

    def to_json(self) -> dict[str, Any]:
        return {"confidence": self.config.confidence, "scopes": plain(self.scopes), "notes": list(self.notes)}


def local(
    *paths: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    within: float = TOLERANCE,
    noise_share: float = NOISE_SHARE,
) -> LocalBatchSizes:
    """Estimate the local critical batch sizes from all branches in the folders.

    Args:
        paths: sweeps, or folders of sweeps; critical batch sizes of sweeps from the start among them are shown beside.
        config: configuration of the analysis.
        within: excess loss, in the unit of the metric, up to which a branch has not lost.
        noise_share: the same as a fraction of the standard deviation of a loss over seeds; the larger one counts.

    Raises:
        ConfigError: if ``within`` is not a finite number above 0, or ``noise_share`` is negative or not finite.
        ResultsError: if there are no branches, or results cannot be read.
    """
    if not paths:
        raise ConfigError("give at least one results folder")
    if not 0 < within < math.inf:
        raise ConfigError(f"--within must be a number above 0, got {within:g}")
    if not 0 <= noise_share < math.inf:
        raise ConfigError(f"--noise-share must be 0 or more, got {noise_share:g}")
    every, notes = read_trials(*paths)
    found = [tuned(each) for each in branched(every, notes)]
    beside = _beside(paths, config)
    scopes = []
    for _, members in itertools.groupby(sorted(found, key=_scope), key=_scope):
        scopes.append(_answered(list(members), beside, config, within, noise_share))
    notes += [line for scope in scopes for line in differing([curve.group for curve in scope.curves])]
    return LocalBatchSizes(config=config, scopes=tuple(scopes), notes=tuple(dict.fromkeys(notes)))


def _scope(branches: TunedBranches) -> tuple[str, str, str]:
    group = branches.branched.group
    return group.workload, group.target.metric, str(group.data_hash)


def _whose(branches: TunedBranches) -> tuple[str, str]:
    return branches.branched.group.sweep, branches.branched.group.optimizer


def _alike(group: Group, other: Group) -> bool:
    """Whether two groups train the same optimizer on the same workload and data; unknown data match any."""
    known = {group.data_hash, other.data_hash} - {None}
    return len(known) < 2 and (group.workload, group.workload_options, group.choice) == (
        other.workload, other.workload_options, other.choice
    )  # fmt: skip


def _beside(paths: Sequence[str | os.PathLike[str]], config: AnalysisConfig) -> list[Answer]:
    """Return the answers of sweeps from the start; empty if there are no such trials."""
    try:
        return [each for each in answers(load(*paths), config, noise=False) if each.critical_batch_size is not None]
    except ResultsError:  # only branches, and trunks, which have a single batch size
        return []


def _answered(
    members: list[TunedBranches], beside: Sequence[Answer], config: AnalysisConfig,
    within: float, share: float,
) -> LocalScope:  # fmt: skip
    runs = [sorted(own, key=lambda each: each.branched.examples) for _, own in itertools.groupby(members, key=_whose)]
    drawn = [factor_curves(along, config, 101 * index) for index, along in enumerate(runs)]
    deviations = [each.deviation for each in itertools.chain(*drawn) if each is not None and each.freedom]
    noise = float(np.median(deviations)) if deviations else None
    tolerance = max(within, share * (noise or 0.0))
    sweeps = Counter(optimizer for _, optimizer in set(map(_whose, members)))
    curves: list[LocalCurve] = []
    for run, of_run in zip(runs, drawn, strict=True):
        checkpoints = tuple(
            checkpoint(branches, curve, tolerance, config, 101 * len(curves) + index)
            for index, (branches, curve) in enumerate(zip(run, of_run, strict=True))
        )
        first = run[0].branched
        exponent, power = _power_law(checkpoints, config.confidence)
        optimizer = first.group.optimizer
        curves.append(
            LocalCurve(
                group=first.group,
                optimizer=f"{optimizer}, {first.group.sweep}" if sweeps[optimizer] > 1 else optimizer,
                source=first.source,
                checkpoints=checkpoints,
                average=_average(checkpoints, config.confidence),
                exponent=exponent,
                power_average=power,
                sweep=tuple(
                    SweepCritical(
                        each.critical.value,
                        each.interval,
                        target=str(each.target),
                        definition=each.critical.definition,
                    )
                    for each in beside
                    if _alike(first.group, each.group)
                ),
            )
        )
    group = members[0].branched.group
    pairs = [pair for one, two in itertools.permutations(curves, 2) for pair in _pairs(one, two, config.confidence)]
    return LocalScope(
        workload=group.workload, metric=group.target.metric, metric_unit=group.metric_unit,
        example_unit=group.example_unit, tokens_per_example=group.tokens_per_example, tolerance=tolerance,
        absolute=within, noise_share=share, noise=noise, curves=tuple(curves), pairs=tuple(pairs),
    )  # fmt: skip


def factor_curves(along: Sequence[TunedBranches], config: AnalysisConfig, seed: int) -> list[FactorCurve | None]:
    """Return draws of the losses of every checkpoint of a run; those with hardly any noise of their own have that of
    the others."""
    every = [branches.curve("loss", config, seed + index) for index, branches in enumerate(along)]
    found = []
    for index, (branches, own) in enumerate(zip(along, every, strict=True)):
        lenders = [each for each in every if each is not None and each is not own and each.freedom >= SOME]
        needs = own is not None and own.freedom < ENOUGH and bool(lenders)
        found.append(branches.curve("loss", config, seed + index, lenders) if needs else own)
    return found


def _rows(checkpoints: Sequence[LocalCheckpoint]) -> Array | None:
    """Return the logarithms of the local critical batch sizes, ``[1 + R, C]``: the estimates, then R draws. ``None`` if
    there are no checkpoints, one has no value, or their numbers of draws differ."""
    values = [each.critical_batch_size.value for each in checkpoints]
    if not values or any(value is None for value in values) or len({len(each.drawn) for each in checkpoints}) > 1:
        return None
    drawn = np.stack([each.drawn for each in checkpoints], axis=1)
    return np.vstack([np.log(np.array(values, dtype=float))[None], drawn])


def _average(checkpoints: Sequence[LocalCheckpoint], confidence: float) -> Quantity:
    rows = _rows(checkpoints)
    if rows is None or len(checkpoints) < 2:
        return UNKNOWN
    at = np.array([each.examples for each in checkpoints], dtype=float)
    return Quantity.open_ended(np.trapezoid(np.exp(rows), at, axis=1) / (at[-1] - at[0]), confidence)


def _power_law(checkpoints: Sequence[LocalCheckpoint], confidence: float) -> tuple[Quantity, Quantity]:
    """Return the exponent of the power law, and the time average from the start by that law; a checkpoint at 0 examples
    is left out."""
    later = [each for each in checkpoints if each.examples > 0]
    rows = _rows(later)
    if rows is None or len(later) < 3:
        return UNKNOWN, UNKNOWN
    logs = np.log([each.examples for each in later])
    with np.errstate(invalid="ignore", over="ignore"):
        slopes = rows @ ((logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum())
        last = rows.mean(axis=1) + slopes * (logs[-1] - logs.mean())
        average = np.where(slopes > -1, np.exp(last) / (slopes + 1), np.nan)
    return Quantity.open_ended(slopes, confidence), Quantity.open_ended(average, confidence)


def _pairs(one: LocalCurve, two: LocalCurve, confidence: float) -> list[LocalPair]:
    """Return the ratio of ``one`` to ``two`` at the loss of every checkpoint of ``one`` that lies between losses of
    checkpoints of ``two``, if all checkpoints that this takes have a value."""
    placed = sorted((each for each in two.checkpoints if each.loss is not None), key=lambda each: each.loss or 0.0)
    losses = np.array([each.loss for each in placed])
    found = []
    for each in one.checkpoints:
        mine = _rows([each])
        if mine is None or each.loss is None or not placed:
            continue
        slack = _ALIKE * abs(each.loss)
        if not losses[0] - slack <= each.loss <= losses[-1] + slack:
            continue
        after = min(max(int(np.searchsorted(losses, each.loss)), 1), len(losses) - 1)
        low, high = losses[after - 1], losses[after]
        share = float(np.clip((each.loss - low) / (high - low), 0, 1)) if high > low else 0.5
        weights = {at: part for at, part in ((after - 1, 1 - share), (after, share)) if part}
        rows = _rows([placed[at] for at in weights])
        if rows is None or len(rows) != len(mine):
            continue
        with np.errstate(invalid="ignore"):
            its = (rows * list(weights.values())).sum(axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            ratios = np.exp(mine[:, 0] - its)
        drawn = ratios[1:]
        told = bool(len(drawn)) and not np.isnan(drawn).any()
        ratio = Quantity.open_ended(ratios, confidence)
        found.append(
            LocalPair(
                value=ratio.value, interval=ratio.interval, optimizer=one.optimizer, other=two.optimizer,
                loss=each.loss, probability=float((drawn > 1).mean()) if told else None,
            )
        )  # fmt: skip
    return found


def in_words(scope: LocalScope) -> str:
    """Return the tolerance and where it comes from, in words."""
    unit = f" {scope.metric_unit}" if scope.metric_unit else ""
    if scope.noise is None or scope.noise_share * scope.noise <= scope.absolute:
        rest = "" if scope.noise is None else f"; a loss scatters by {number(scope.noise)} over seeds"
        return f"tolerance {number(scope.tolerance)}{unit}{rest}"
    return (
        f"tolerance {number(scope.tolerance)}{unit}: {number(scope.noise_share)} times the deviation of a loss over "
        f"seeds, more than {number(scope.absolute)}"
    )
