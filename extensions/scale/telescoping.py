r"""Telescoping: find the best learning rate of a wide model with ever smaller grids at ever wider models.

In muP the best learning rate :math:`x^*` hardly depends on the width n: it drifts as

.. math:: \ln x^*(n) = \ln x^* - \alpha / n + O(1/n^2),

so each doubling of the width moves it half as far as the previous one. The grid is therefore wide at the first width
only. At every further width it is centred on the optimum of the previous one, its range shrinks like :math:`1/n`, and
it has fewer points (8, 5, 3, 1), so that the cost of a stage stays about the same while that of a trial grows.

Source: Essential AI, "Practical Efficiency of Muon for Pretraining", arXiv 2505.02222, Algorithm 1 and the grids given
there. Added here: if the best learning rate is at the edge of its grid, the grid is extended on that side until it is
not, as in every search of this package. The plan is a function of finished trials, so an interrupted search continues
to the same result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cbs.errors import ConfigError, ResultsError
from cbs.trial import lr_choice
from cbs.trial.lr_choice import at_edges, best_lr

# Largest number of learning rates by which a grid may be extended
EXTENSION = 6

POINTS = (8, 5, 3, 1)  # Number of learning rates at the first, second, third and every further width


@dataclass(frozen=True, kw_only=True)
class WidthStage:
    """Result at one width.

    Attributes:
        width: the width.
        lrs: learning rates tried, in increasing order.
        steps: geometric mean over seeds of the steps to target at each learning rate; NaN if a seed missed the target.
        best_lr: the best of the learning rates tried.
        optimum: minimum of the parabola in logarithms through the best one and its neighbours; the best one itself if a
            neighbour missed the target or does not exist.
        at_grid_edge: whether the best one is the lowest or highest that was tried.
    """

    width: int
    lrs: tuple[float, ...]
    steps: tuple[float, ...]
    best_lr: float
    optimum: float
    at_grid_edge: bool

    @property
    def tuned(self) -> bool:
        """Whether there was more than one learning rate to choose from."""
        return len(self.lrs) > 1


@dataclass(frozen=True, kw_only=True)
class Telescoped:
    """All stages, from narrow to wide.

    Attributes:
        stages: one stage for each width.
        seeds: number of trials of each learning rate.
    """

    stages: tuple[WidthStage, ...]
    seeds: int

    @property
    def trials(self) -> int:
        """Number of trials of all stages."""
        return self.seeds * sum(len(stage.lrs) for stage in self.stages)

    @property
    def full_grid_trials(self) -> int:
        """Number of trials that full grids at every width would take, with the range of the first and the finest
        spacing used."""
        first = self.stages[0].lrs
        mesh = min(math.log(stage.lrs[1] / stage.lrs[0]) for stage in self.stages if stage.tuned)
        return self.seeds * len(self.stages) * (math.ceil(math.log(first[-1] / first[0]) / mesh - 0.01) + 1)


class Telescoping:
    """Finds the best learning rate at every width, as far as it has come.

    Args:
        widths: increasing widths, at least two.
        first: learning rates at the first width, increasing by a constant ratio, at least three.

    Attributes:
        stages: results at the widths that are finished.

    Raises:
        ConfigError: if there are too few widths or learning rates, or they do not increase.
    """

    def __init__(self, widths: Sequence[int], first: Sequence[float]) -> None:
        check_widths(widths)
        if len(first) < 3:
            raise ConfigError(f"telescoping starts from at least three learning rates, got {len(first)}")
        self.stages: list[WidthStage] = []
        self._widths, self._half_range = tuple(widths), 0.5 * math.log(first[-1] / first[0]) * widths[0]
        self._lrs, self._extensions = tuple(first), 0

    def next(self) -> tuple[int, tuple[float, ...]] | None:
        """Return a width and the learning rates to try there, or ``None`` at the end. A width comes again with more
        learning rates if its grid has to be extended."""
        done = len(self.stages) == len(self._widths)
        return None if done else (self._widths[len(self.stages)], self._lrs)

    def add(self, steps: np.ndarray) -> None:
        """Take in what was tried: the grid is extended until the winner is inside, at most :data:`EXTENSION` times.

        Args:
            steps: steps to target, shape ``[learning rates, seeds]``, NaN where the target was not reached.

        Raises:
            ResultsError: if no trial reaches the target.
        """
        width, lrs = self._widths[len(self.stages)], self._lrs
        row = best_lr(steps)
        if row is None:
            raise ResultsError(f"no trial at width {width} reached the target; choose an easier --target or more steps")
        if (steps == 0).any():
            raise ResultsError(
                f"the target is reached before the first step at width {width}; choose a harder --target"
            )
        lowest, highest = at_edges(row, [True] * len(lrs))
        if len(lrs) > 1 and (lowest or highest) and self._extensions < EXTENSION:
            self._extensions += 1
            self._lrs = (_clean(lrs[0] ** 2 / lrs[1]), *lrs) if lowest else (*lrs, _clean(lrs[-1] ** 2 / lrs[-2]))
            return
        stage = _stage(width, lrs, np.log(steps).mean(axis=1), row)
        self.stages.append(stage)
        index = len(self.stages)
        if index < len(self._widths):
            points = POINTS[min(index, len(POINTS) - 1)]
            self._lrs, self._extensions = around(stage.optimum, self._half_range / self._widths[index], points), 0


def check_widths(widths: Sequence[int]) -> None:
    """Raise ``ConfigError`` unless there are at least two widths and they increase."""
    if len(widths) < 2 or any(wide <= narrow for narrow, wide in pairwise((0, *widths))):
        raise ConfigError(f"telescoping needs at least two widths that increase, got {', '.join(map(str, widths))}")


def first_grid(grid: Sequence[float]) -> tuple[float, ...]:
    """Return the grid of the first width: the optimizer's own grid, extended at both ends to ``POINTS[0]`` learning
    rates."""
    ratio, missing = grid[1] / grid[0], max(0, POINTS[0] - len(grid))
    start = grid[0] / ratio ** (missing // 2)
    return tuple(_clean(start * ratio**power) for power in range(len(grid) + missing))


def around(centre: float, half_range: float, points: int) -> tuple[float, ...]:
    """Return ``points`` learning rates within a factor ``exp(half_range)`` of ``centre``, evenly spaced in the
    logarithm."""
    offsets = np.linspace(-half_range, half_range, points) if points > 1 else [0.0]
    return tuple(_clean(centre * math.exp(offset)) for offset in offsets)


def vertex(lrs: Sequence[float], values: Sequence[float]) -> float:
    """Return the minimum of the parabola in ``ln lr`` through three points of which the middle one is lowest.

    Returns the middle learning rate if a value is not finite or the three are equal.
    """
    (left, _, right), (below, above) = np.subtract(values, values[1]), np.diff(np.log(lrs))
    distance = lr_choice.vertex(left, right, below, above)[0] if math.isfinite(left + right) else 0.0
    return float(lrs[1] * math.exp(distance))


def _stage(width: int, lrs: tuple[float, ...], means: np.ndarray, row: int) -> WidthStage:
    inside = 0 < row < len(lrs) - 1
    return WidthStage(
        width=width,
        lrs=lrs,
        steps=tuple(float(value) for value in np.exp(means)),
        best_lr=lrs[row],
        optimum=vertex(lrs[row - 1 : row + 2], means[row - 1 : row + 2].tolist()) if inside else lrs[row],
        at_grid_edge=len(lrs) > 1 and not inside,
    )


def _clean(lr: float) -> float:
    # Four digits are enough for any grid, and give the same trial id after the value was read back from a file.
    return float(f"{lr:.4g}")
