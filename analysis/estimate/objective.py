r"""Use the loss at the end of runs of equal length as the objective, instead of the steps to target.

The choice of a learning rate (:mod:`cbs.trial.lr_choice`), the objective at the best one
(:mod:`analysis.estimate.best_rate`) and the draws (:mod:`analysis.estimate.draws`) work on the logarithms of steps. A
loss takes the place of such a logarithm: a study of losses y has :math:`e^{(y - y_0)/u}` as its steps, with the unit u
of :func:`loss_studies`, so that a difference that matters is about as large as one of ln steps that does. Everything
that is made of them is linear in y, and comes out in units of u.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import at_best
from analysis.estimate.draws import Draws, Levels, draw, draw_levels
from analysis.estimate.prior import Line
from analysis.estimate.studies import Study, one_study
from analysis.quantities import Array, pooled
from analysis.read.groups import Group
from cbs.trial.record import leeway

# The unit over the second difference of the loss at the best learning rate and its neighbours: two of these away the
# loss is higher by .7 units (2.5^2 - .5^2 = 6 halves of that difference), which still shows the shape of the bottom.
_BENT = 4.0

_NOISY = 10.0  # The unit over the standard deviation of one run, at least

# Losses above the smallest count as at most so many units higher; those at the best learning rates never are
_RANGE = 300.0

# The prior if no seeds show the noise: it is then assumed to be about a hundredth of what neighbouring rates lose
_ONE_SEED = Line(noise_spread=1.0)

_FEWEST = 4  # Number of batch sizes whose losses show, if there is one seed, their scatter around a curve


class Scale(NamedTuple):
    """A loss is ``zero`` plus ``unit`` times what stands in its place."""

    zero: float
    unit: float


def common_budget(ended: Array, batch_sizes: Array, unfilled: float | Array = 0.0) -> tuple[float, float] | None:
    """Return the smallest and the largest budget that runs which saw ``ended`` examples may all have had; ``None`` if
    they had different ones, so that their losses do not compare. ``unfilled`` is the most that each may have left
    unused at its end."""
    near = leeway(ended, batch_sizes)
    low, high = float(np.max(ended - near)), float(np.min(ended + near + unfilled))
    return (low, high) if low <= high else None


def final_losses(
    group: Group, rows: pd.DataFrame, losses: pd.Series
) -> Iterator[tuple[int, pd.DataFrame, Study, Array]]:
    """Yield every batch size of a group with its trials, their study without steps, and their losses ``[L, N]`` in its
    order; ``losses`` are those of the trials that have one, by their row."""
    for size, part in rows.groupby("batch_size", sort=True):
        study = one_study(group, int(size), part, group.target, np.full(len(part), np.nan))
        yield int(size), part, study, losses.reindex(study.trials.ravel()).to_numpy(float).reshape(study.trials.shape)


def loss_studies(studies: Sequence[Study], losses: Sequence[Array]) -> tuple[list[Study], Scale]:
    """Return studies of losses, shape ``[L, N]`` each, NaN where there is none, in place of steps; and their scale."""
    scale = _scale(losses)
    made = []
    for study, table in zip(studies, losses, strict=True):
        nothing = np.full(table.shape, np.nan)
        steps = np.exp(np.minimum((table - scale.zero) / scale.unit, _RANGE))
        made.append(replace(study, steps=steps, bound=nothing, resolution=np.zeros(table.shape)))
    return made, scale


def _scale(losses: Sequence[Array]) -> Scale:
    bends, winners, least, best = [], [], math.inf, []
    for table in losses:
        there = np.isfinite(table)
        if not there.any():
            continue
        with np.errstate(invalid="ignore"):
            means = np.where(there.any(axis=1), np.where(there, table, 0.0).sum(axis=1) / there.sum(axis=1), np.inf)
        at, least = int(means.argmin()), min(least, float(table[there].min()))
        winners.append(table[at][there[at]])
        best.append(means[at])
        if 0 < at < len(means) - 1 and np.isfinite(means[at - 1 : at + 2]).all():
            bends.append(float(means[at - 1] + means[at + 1] - 2 * means[at]))
    if not best:
        return Scale(0.0, 1.0)
    spread = float(np.max(best)) - least
    squares, freedom = pooled(winners)
    noise = math.sqrt(squares / freedom) if freedom else 0.0
    # where no best rate lies inside, a tenth of what lies between the batch sizes stands for the bend
    unit = max(_BENT * float(np.median(bends)) if bends else 0.1 * spread, _NOISY * noise, spread / _RANGE)
    return Scale(least, unit if unit > 0 else 1.0)


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Losses at the best learning rate of each of ``M`` conditions, including rates between those that were run.

    Attributes:
        sizes: batch sizes, shape ``[M]``.
        values: the expected losses, shape ``[M]``.
        drawn: draws of them, shape ``[R, M]``; no rows if the noise is unknown.
        draws: draws of the curve through those that are no bounds; ``None`` where no curve joins them.
        levels: what is drawn where no curve joins them; ``None`` elsewhere, and if the noise is unknown.
        edges: whether the best learning rate is the lowest or the highest that was run, so that the loss is a bound,
            shape ``[M]``. A single learning rate is both, unless no condition has more than one, as with a rule.
        between: width of the range in which the saving by a learning rate between those that were run may lie, ``[M]``.
        seeds: number of seeds at the winning learning rate, shape ``[M]``.
        deviation: standard deviation of one run.
        freedom: degrees of freedom of the noise that seeds show.
    """

    sizes: Array
    values: Array
    drawn: Array = field(repr=False)
    draws: Draws | None = field(repr=False)
    levels: Levels | None = field(repr=False)
    edges: np.ndarray
    between: Array
    seeds: Array
    deviation: float
    freedom: int

    def at(self, positions: Array) -> Array:
        """Return draws at ln of some batch sizes ``[G]``, ``[R, G]``: of the curve, or of straight lines without one;
        the expected losses if the noise is unknown."""
        if self.draws is not None:
            return self.draws.drawn(np.exp(positions))
        logs, rows = np.log(self.sizes[~self.edges]), self.drawn if len(self.drawn) else self.values[None]
        return np.array([np.interp(positions, logs, row) for row in rows[:, ~self.edges]])


def draw_losses(
    studies: Sequence[Study], scale: Scale, config: AnalysisConfig, *, name: str = "", curve: bool = True
) -> Losses:
    """Return draws of the losses at the best learning rates of studies of losses, each of which has a winner.

    With ``curve`` the conditions are batch sizes in increasing order, and the draws those of a curve through them,
    which lowers the noise. With one seed its size is read off the scatter about the curve. ``name`` is as for
    :func:`analysis.estimate.draws.draw`.
    """
    found, edges = at_best(studies, math.inf), winners_at_edges(studies)
    sizes = np.array([study.batch_size for study in studies], dtype=float)
    values = np.array([float(np.nanmean(each.values)) for each in found])
    seeds = np.array([float(np.isfinite(study.steps[study.winner or 0]).sum()) for study in studies])
    freedom, kept = int((seeds - 1).sum()), np.flatnonzero(~edges)
    count, seed = config.resamples, config.seed
    drawn, draws, levels, deviation = np.empty((0, len(found))), None, None, math.nan
    if curve and len(kept) > 1 and (freedom or len(kept) >= _FEWEST):
        draws = draw(
            sizes[kept].tolist(), [found[at] for at in kept], count, seed, Line() if freedom else _ONE_SEED, name=name
        )
        own, deviation = draws.own, draws.deviation
        drawn = (
            values + own[:, None] * np.random.default_rng([seed, 1]).standard_normal((count, len(found))) / seeds**0.5
        )
        drawn[:, kept] = draws.drawn(sizes[kept])
    elif freedom:
        levels = draw_levels(sizes.tolist(), found, count, seed, Line(), name=name)
        drawn, deviation = levels.drawn, math.sqrt(float(np.mean(levels.own**2)))
    if len(drawn):
        values = np.median(drawn, axis=0)
    return Losses(
        sizes=sizes,
        values=scale.zero + scale.unit * values,
        drawn=scale.zero + scale.unit * drawn,
        draws=draws and draws.rescaled(*scale),
        levels=levels,
        edges=edges,
        between=scale.unit * 4.0 * np.sqrt(np.array([each.variance for each in found])),
        seeds=seeds,
        deviation=scale.unit * deviation,
        freedom=freedom,
    )


def winners_at_edges(studies: Sequence[Study]) -> np.ndarray:
    """Return a mask of the studies whose best learning rate is the lowest or the highest, shape ``[M]``."""
    chosen = any(len(study.lrs) > 1 for study in studies)
    return np.array(
        [chosen and bool(np.isfinite(study.lrs).all()) and study.at_edge(study.winner or 0) for study in studies],
        dtype=bool,
    )
