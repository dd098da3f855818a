"""Branches: trials that start from checkpoints of another run with a multiple of its batch size.

They are not points of a curve of steps against batch size, so :func:`analysis.read.results.load` leaves them out. A
sweep that starts from a checkpoint but contains no multiples is a sweep like any other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import at_best
from analysis.estimate.objective import Scale, loss_studies, winners_at_edges
from analysis.estimate.studies import Study
from analysis.formatting import number
from analysis.quantities import Array
from analysis.read.groups import UNSHOWN, Group, grouped, without_duplicates
from analysis.read.results import are_branches, branch_factors
from cbs.errors import ResultsError
from cbs.trial.parent import Parent
from cbs.trial.record import TrialStatus, leeway
from extensions.branching.factors import BranchLosses, FactorCurve, end_mean, factor_curve

_OWN = ("optimizer", "warmup_examples", "source")  # Fields of a parent that distinguish curves of one optimizer
_ROUNDED = 1e-6  # Relative difference up to which two learning rates or batch sizes count as equal


@dataclass(frozen=True, kw_only=True)
class Branched:
    """The branches of one optimizer at one checkpoint.

    Attributes:
        group: the trials of the optimizer.
        source: source of the checkpoint, see :class:`cbs.trial.parent.Parent`.
        examples: number of examples that the trunk had seen at the checkpoint.
        window: number of examples after which losses are compared: the shortest budget of the branches.
        trials: one row per branch: ``factor`` (of the batch size), ``lr_factor``, ``batch_size``, ``lr``, ``seed``,
            ``status``, ``folder``; ``loss`` and ``half`` (at the end of the window and of half of it, lower is better,
            see :func:`extensions.branching.factors.end_mean`: NaN if unknown, infinity for a branch that
            diverged); and ``start`` (before the first step, NaN if unknown).
    """

    group: Group = field(repr=False)
    source: str
    examples: int
    window: float
    trials: pd.DataFrame = field(repr=False)


def branched(every: pd.DataFrame, notes: list[str]) -> list[Branched]:
    """Return the branches among all trials that were read, by optimizer and checkpoint.

    Raises:
        ResultsError: if there are none, none trained to its end, or some start from different checkpoints with one
            name.
    """
    rows = every[are_branches(every)].reset_index(drop=True)
    if rows.empty:
        raise ResultsError("no branches: no trial starts from a checkpoint with a multiple of its batch size")
    parents = list(rows["config"].map(lambda config: config["parent"]))
    factors, lrbranch_factors = zip(*map(branch_factors, parents), strict=True)
    rows = rows.assign(
        config=[
            config | {"parent": {key: parent[key] for key in _OWN} | {"source": run}}
            for config, parent, run in zip(rows["config"], parents, _runs(rows, parents), strict=True)
        ],
        factor=factors,
        lr_factor=lrbranch_factors,
        born=[int(parent["examples"]) for parent in parents],
        source=[str(parent["source"]) for parent in parents],
        digest=[str(parent["digest"]) for parent in parents],
    )
    rows["group"], groups = grouped(rows)
    found = []
    for (index, born), part in rows.groupby(["group", "born"], sort=True):
        where = f"{groups[index].optimizer} at {born:,} examples"
        if part["digest"].nunique() > 1:
            raise ResultsError(
                f"{where}: branches start from different checkpoints of one name; keep those of one in the folder"
            )
        _check_trunk(where, part)
        kept = without_duplicates(part, notes)
        at_checkpoint = _checkpoint(groups[index], int(born), kept, notes)
        if not at_checkpoint.trials["loss"].isna().all():
            found.append(at_checkpoint)
    if not found:
        raise ResultsError("no branch trained to the end of its window; run 'cbs branch' again")
    return sorted(found, key=lambda each: (each.group.sweep, each.group.workload))


def _runs(rows: pd.DataFrame, parents: Sequence[dict[str, Any]]) -> list[str]:
    """Return what identifies the run from which every branch starts.

    It is the fingerprint of the trunk, or the folder of the checkpoint if no two checkpoints of one optimizer in it
    have seen the same number of examples; otherwise the checkpoint itself.
    """
    sources = pd.Series([str(parent["source"]) for parent in parents])
    runs = [parent["source"] if Parent(**parent).trunk else str(Path(parent["source"]).parent) for parent in parents]
    own = [rows["root"].map(str), rows["choice"].map(str), pd.Series(runs)]
    seen = pd.Series([parent["examples"] for parent in parents])
    unlike = sources.groupby([*own, seen]).transform("nunique").groupby(own).transform("max") > 1
    return sources.where(unlike, runs).to_list()


def _check_trunk(where: str, rows: pd.DataFrame) -> None:
    """Check that the factors of all branches refer to the same run; another ``--lr`` or ``--trunk-batch`` for the same
    checkpoint would give other factors."""
    for name, factor in (
        ("batch size", rows["batch_size"] / rows["factor"]),
        ("learning rate", rows["lr"] / rows["lr_factor"]),
    ):
        own = factor.astype(float).dropna()
        if len(own) and own.max() > (1 + _ROUNDED) * own.min():
            raise ResultsError(
                f"{where}: factors count from a {name} of {number(own.min())} and of {number(own.max())} of the run; "
                "keep the branches of one in the folder"
            )


def _checkpoint(group: Group, born: int, rows: pd.DataFrame, notes: list[str]) -> Branched:
    budgets = rows["max_steps"] * rows["batch_size"]
    window = float(budgets.min())
    sign = group.target.sign
    where = f"{group.optimizer} at {number(born)} {group.example_unit}s"
    if budgets.max() > window + rows["batch_size"].max():
        notes.append(f"{where}: windows differ; all branches are compared after the shortest, of {number(window)}")
    every = [row for _, row in rows.iterrows()]
    losses = [_loss(row, window, sign) for row in every]
    if missing := int(np.isnan(losses).sum()):
        notes.append(f"{where}: {missing} of {len(rows)} branches left out that did not train to the end of the window")
    kept = rows.assign(
        loss=losses,
        half=[_loss(row, window / 2, sign) for row in every],
        start=[
            sign * float(values[0]) if len(values) and not examples[0] else np.nan
            for values, examples in zip(rows["values"], rows["examples"], strict=True)
        ],
    )
    if kept["start"].isna().all():
        notes.append(
            f"{where}: no branch was evaluated before its first step, so the loss of the checkpoint is unknown"
        )
    columns = ["steps", "examples", "lrs", "values", "group", "digest", "born", "source"]
    return Branched(
        group=group,
        source=str(rows["source"].iloc[0]),
        examples=born,
        window=window,
        trials=kept.drop(columns=[*columns, *UNSHOWN]).reset_index(drop=True),
    )


def _loss(row: Any, window: float, sign: float) -> float:
    """Return the loss at the end of a window: NaN if unknown, infinity if the branch diverged."""
    examples, values = np.asarray(row["examples"], float), np.asarray(row["values"], float)
    if TrialStatus(row["status"]) is TrialStatus.DIVERGED:
        return math.inf
    if not len(examples) or examples[-1] < window - leeway(window, row["batch_size"]):
        return math.nan
    return sign * end_mean(examples, values, window)


# By chance not even two seeds scatter so much farther than others
_WILD = 30.0


@dataclass(frozen=True, kw_only=True)
class TunedBranches:
    """The branches of a checkpoint at the best learning rate of every factor, see :func:`tuned`.

    Attributes:
        branched: all branches of the checkpoint.
        factors: ratios of the batch sizes to that of the trunk, increasing, ``[K]``.
        studies: of the losses of every factor; learning rates are ratios to that of the trunk.
        rows: positions in :attr:`Branched.trials` at the best learning rate by seed and factor, -1 where there is no
            branch, ``[N, K]``.
        lr_factors: the best learning rate of every factor that was run, ``[K]``.
        edges: whether it is the lowest or the highest of several, ``[K]``.
        diverged: whether a branch diverged at it, or losses over seeds scatter :data:`_WILD` times as far as is usual,
            so that some are on the way to it, ``[K]``.
    """

    branched: Branched
    factors: Array
    studies: tuple[Study, ...] = field(repr=False)
    rows: np.ndarray
    lr_factors: Array
    edges: np.ndarray
    diverged: np.ndarray

    def arranged(self, values: Array) -> BranchLosses:
        """Return values of the trials at the best learning rates; NaN where there is no branch."""
        return BranchLosses(self.factors, np.where(self.rows >= 0, values[self.rows], np.nan))

    def of_factor(self, index: int) -> pd.DataFrame:
        """Return the trials of one factor at its best learning rate."""
        return self.branched.trials.iloc[self.rows[self.rows[:, index] >= 0, index]]

    def curve(
        self, column: str, config: AnalysisConfig, seed: int, lenders: list[FactorCurve] | None = None
    ) -> FactorCurve | None:
        """Return draws of the losses in a column, of the factors of which no branch diverged; ``None`` without one."""
        made, scale = _losses(self.branched, self.studies, column)
        kept = [at for at, study in enumerate(made) if study.winner is not None and not self.diverged[at]]
        if not kept:
            return None
        found = at_best([made[at] for at in kept], math.inf)
        return factor_curve(self.factors[kept], found, scale, config.resamples, config.seed + seed, lenders or ())


def _losses(branched: Branched, studies: Sequence[Study], column: str) -> tuple[list[Study], Scale]:
    """Return studies of the finite losses in a column."""
    values = branched.trials[column].to_numpy(float)
    tables = [np.where((each.trials >= 0) & np.isfinite(values[each.trials]), values[each.trials], np.nan)
              for each in studies]  # fmt: skip
    return loss_studies(studies, tables)


def tuned(branched: Branched) -> TunedBranches:
    """Arrange the branches by factor, learning rate and seed, and choose the best learning rate of every factor."""
    trials = branched.trials
    losses = trials["loss"].to_numpy(float)
    factors, of_factor = np.unique(trials["factor"].to_numpy(float), return_inverse=True)
    seeds, of_seed = np.unique(trials["seed"], return_inverse=True)
    studies = []
    for index in range(len(factors)):
        own = np.flatnonzero(of_factor == index)
        lrs, of_lr = np.unique(trials["lr_factor"].to_numpy(float)[own], return_inverse=True)
        rows = np.full((len(lrs), len(seeds)), -1)
        rows[of_lr, of_seed[own]] = own
        status = np.full(rows.shape, "", dtype=object)
        status[(rows >= 0) & np.isfinite(losses[rows])] = TrialStatus.BUDGET_EXHAUSTED
        status[(rows >= 0) & np.isposinf(losses[rows])] = TrialStatus.DIVERGED
        nothing = np.full(rows.shape, np.nan)
        size = int(trials["batch_size"].iloc[own[0]])
        studies.append(
            Study(batch_size=size, lrs=lrs, seeds=seeds, steps=nothing, status=status, bound=nothing, trials=rows,
                  resolution=np.zeros(rows.shape))
        )  # fmt: skip
    studies, _ = _losses(branched, studies, "loss")
    found = [(study, study.winner or 0) for study in studies]
    rows = np.stack([study.trials[row] for study, row in found], axis=1)
    known = [losses[each[(each >= 0) & np.isfinite(losses[each])]] for each in rows.T]
    spreads = np.array([each.std() if len(each) else 0.0 for each in known])
    usual = float(np.median(spreads[spreads > 0])) if (spreads > 0).any() else 0.0
    return TunedBranches(
        branched=branched,
        factors=factors,
        studies=tuple(studies),
        rows=rows,
        lr_factors=np.array([study.lrs[row] for study, row in found]),
        edges=winners_at_edges(studies),
        diverged=np.array([(study.status[row] == TrialStatus.DIVERGED).any() for study, row in found])
        | ((spreads > 0) & (spreads > _WILD * usual)),
    )
