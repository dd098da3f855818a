"""The branches of one checkpoint as studies of their losses, one for every factor of the batch size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import at_best
from analysis.estimate.objective import Scale, loss_studies, winners_at_edges
from analysis.estimate.studies import Study
from analysis.quantities import Array
from cbs.trial.record import TrialStatus
from extensions.branching.factors import BranchLosses, FactorCurve, factor_curve
from extensions.branching.reading import Branched

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

    def of_factor(self, place: int) -> pd.DataFrame:
        """Return the trials of one factor at its best learning rate."""
        return self.branched.trials.iloc[self.rows[self.rows[:, place] >= 0, place]]

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
