"""From the studies of one optimizer to draws of its curve, and to what speaks against them.

Outlying seeds, which differ from the other runs of the same batch size by more than seeds do, are left out of every
second draw.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, stdtr

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import AtBest, at_best
from analysis.estimate.definitions.least_product import least_product
from analysis.estimate.draws import Draws, draw
from analysis.estimate.prior import StepsPrior
from analysis.estimate.studies import Study

FEWEST = 2  # Number of batch sizes that a curve needs at least

FEWEST_SIBLINGS = 2  # Of two seeds nobody can tell which is far
LEAST_FACTOR = 1.5  # A seed within this factor of the other seeds is never reported as far
_LEVEL = 0.01  # Probability that any seed of a curve is reported as far if none is
_FEW = 400  # Draws with which the priors are tried halved and doubled

# Share of its warmup by which a run is longer than one without: at a learning rate that rises evenly from 0 it makes
# about half the progress.
HALF_A_WARMUP = 0.5


class FarSeed(NamedTuple):
    """A seed that took ``factor`` times the geometric mean of the other seeds' steps to target, or, if ``missed``, did
    not get there in as many."""

    batch_size: int
    seed: int
    factor: float
    missed: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The draws of one optimizer's curve at one target, and what was found on the way.

    Attributes:
        draws: the draws.
        believed: whether other batch sizes say where the best learning rate lies that is at an edge of the grid, by
            study, see :class:`analysis.estimate.best_rate.AtBest`.
        hyperbola: likewise if the exponent is 1 and nothing departs from the hyperbola.
        far: seeds far from the others.
        moved_by_prior: by how much ln of the headline moves if all priors are half or twice as wide, whichever is more.
        moved_by_warmup: by how much it moves if runs are counted without half of their warmup.
    """

    draws: Draws
    believed: tuple[bool, ...]
    hyperbola: Draws
    far: tuple[FarSeed, ...]
    moved_by_prior: float
    moved_by_warmup: float


def draw_studies(studies: Sequence[Study], config: AnalysisConfig, name: str = "") -> Drawn | None:
    """Return the draws of the curve through the studies, in increasing order of batch sizes; ``None`` if fewer than two
    reached the target."""
    found = at_best(studies)
    if sum(bool(np.isfinite(each.values).any()) for each in found) < FEWEST:
        return None
    sizes = [study.batch_size for study in studies]
    far = far_seeds(found)
    draws = draw(sizes, found, config.resamples, config.seed, name=name)
    if far:
        rest = [_without(each, far[index][0]) if index in far else each for index, each in enumerate(found)]
        draws = draw(sizes, rest, config.resamples, config.seed, name=name).mixed(draws)
    # the law's own parameters are those without departures, which would take any part of it
    law = draw(sizes, found, config.resamples, config.seed, StepsPrior(departs=False), name=name).law
    draws = replace(draws, law=law)
    few, usual = min(_FEW, config.resamples), _middle(draws)

    def moved(objectives: Sequence[AtBest], prior: StepsPrior) -> float:
        middle = _middle(draw(sizes, objectives, few, config.seed, prior, name=name))
        return 0.0 if middle == usual else abs(middle - usual)

    warm = _without_warmup(found, studies)
    return Drawn(
        draws=draws,
        believed=tuple(each.believed for each in found),
        hyperbola=draw(sizes, found, config.resamples, config.seed, StepsPrior(hyperbola=True)),
        far=tuple(
            FarSeed(sizes[at], int(studies[at].seeds[column]), factor, bool(np.isnan(found[at].values[column])))
            for at, (column, factor) in far.items()
        ),
        moved_by_prior=max(moved(found, StepsPrior(scale=scale)) for scale in (0.5, 2.0)),
        moved_by_warmup=0.0 if warm is None else moved(warm, StepsPrior()),
    )


def _middle(draws: Draws) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(np.median(least_product(draws))))


def _without(found: AtBest, column: int) -> AtBest:
    values, floors = found.values.copy(), found.floors.copy()
    values[column] = floors[column] = np.nan
    return replace(found, values=values, floors=floors)


def _without_warmup(found: Sequence[AtBest], studies: Sequence[Study]) -> list[AtBest] | None:
    """Return the objective without half of the warmup; ``None`` if no run has one."""
    warmups = [HALF_A_WARMUP * study.warmup for study in studies]
    if not any(warmups):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        return [
            # steps that are mostly warmup keep a tenth, as their logarithm must exist
            replace(each, values=np.log(np.maximum(np.exp(each.values) - warmup, 0.1 * np.exp(each.values))))
            for each, warmup in zip(found, warmups, strict=True)
        ]


def far_seeds(found: Sequence[AtBest]) -> dict[int, tuple[int, float]]:
    """Find far seeds; return column and factor of the farthest one by the index of the batch size.

    A seed at the best learning rate is far if its log steps lie far from the mean of at least two others. The distance
    is compared by Student's t, at 1 % for all seeds of the curve together, with a variance that a few far seeds cannot
    raise: the median over batch sizes of each one's own variance divided by the median of its chi-squared distribution,
    at half the total degrees of freedom. So is one that did not get to the target in that many steps; one other seed
    that did is then enough, as no doubt is left which of them is the slow one.
    """
    logs = [each.values for each in found]
    several = [int(np.isfinite(row).sum()) for row in logs]
    medians = [
        float(np.nanvar(row, ddof=1)) / (chdtri(count - 1, 0.5) / (count - 1))
        for row, count in zip(logs, several, strict=True)
        if count > 1
    ]
    if not medians:
        return {}
    deviation = math.sqrt(float(np.median(medians)))
    freedom = max(1.0, sum(count - 1 for count in several if count > 1) / 2)
    # beside a far seed the others look far as well, so only the farthest one is kept
    farthest: dict[int, tuple[int, float]] = {}
    for index, row in enumerate(logs):
        missed = np.isfinite(found[index].floors) & np.isnan(row)
        ran = np.where(missed, found[index].floors, row)
        for column in np.flatnonzero(np.isfinite(ran)):
            siblings = np.delete(row, column)
            siblings = siblings[np.isfinite(siblings)]
            if len(siblings) < (1 if missed[column] else FEWEST_SIBLINGS):
                continue
            distance = float(ran[column] - siblings.mean())
            unit = deviation * math.sqrt(1.0 + 1.0 / len(siblings))
            tail = float(stdtr(freedom, -abs(distance) / unit)) if unit > 0 else 0.0
            slower = distance > 0 or not missed[column]  # a run that was stopped early may be as fast as the others
            if slower and abs(distance) > math.log(LEAST_FACTOR) and 2.0 * tail * sum(several) < _LEVEL:
                far_seed = int(column), math.exp(distance)
                farthest[index] = max(far_seed, farthest.get(index, far_seed), key=lambda seed: abs(math.log(seed[1])))
    return farthest
