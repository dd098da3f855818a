"""Telescoping on a law that is known: where it arrives, what it costs, what it does where the law does not hold."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from cbs.errors import ConfigError, ResultsError
from extensions.scale import telescoping
from extensions.scale.telescoping import POINTS, Telescoped, first_grid, vertex

WIDTHS = (16, 32, 64, 128)
FIRST = first_grid((1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3))
LIMIT = 6e-3


def telescope(
    widths: tuple[int, ...],
    first: tuple[float, ...],
    seeds: int,
    solve: Callable[[int, tuple[float, ...]], np.ndarray],
) -> Telescoped:
    """Every width answered by ``solve``."""
    plan = telescoping.Telescoping(widths, first)
    while (asked := plan.next()) is not None:
        plan.add(solve(*asked))
    return Telescoped(stages=tuple(plan.stages), seeds=seeds)


def law(
    alpha: float = 5.0, *, limit: float = LIMIT, noise: float = 0.0, seed: int = 0, jump: tuple[int, float] = (0, 1.0)
) -> Callable[[int, tuple[float, ...]], np.ndarray]:
    """Steps with a parabola in ln lr around ``limit exp(-alpha / width)``; a trial always has the same noise."""

    def solve(width: int, lrs: tuple[float, ...]) -> np.ndarray:
        best = limit * math.exp(-alpha / width) * (jump[1] if width == jump[0] else 1.0)
        rows = []
        for lr in lrs:
            draw = np.random.default_rng([seed, width, round(1e9 * lr)])
            rows.append(100 * np.exp(0.12 * math.log(lr / best) ** 2 + noise * draw.standard_normal(2)))
        return np.array(rows)

    return solve


@pytest.mark.parametrize("alpha", [-10.0, -5.0, 0.0, 5.0, 10.0])
def test_without_noise_every_tuned_width_is_exact_and_the_last_one_move_off(alpha: float) -> None:
    found = telescope(WIDTHS, FIRST, 2, law(alpha))
    for stage in found.stages[:-1]:
        # A parabola through three points is the parabola; learning rates have four digits.
        assert stage.optimum == pytest.approx(LIMIT * math.exp(-alpha / stage.width), rel=1e-3)
        assert stage.tuned
        assert not stage.at_grid_edge
    last = found.stages[-1]
    assert not last.tuned
    assert math.log(last.best_lr / (LIMIT * math.exp(-alpha / 128))) == pytest.approx(-alpha / 128, abs=2e-3)
    assert [len(stage.lrs) for stage in found.stages] == list(POINTS)
    assert found.trials == 2 * 17


@pytest.mark.parametrize("noise", [0.03, 0.05])
def test_with_noise_the_last_learning_rate_is_within_a_step_of_the_grid_at_half_the_trials(noise: float) -> None:
    off, cost = [], []
    for seed in range(60):
        limit = LIMIT * 2 ** ((seed % 10) / 10 - 0.5)
        found = telescope(WIDTHS, FIRST, 2, law(limit=limit, noise=noise, seed=seed))
        off.append(abs(math.log2(found.stages[-1].best_lr / (limit * math.exp(-5.0 / 128)))))
        cost.append(found.trials / found.full_grid_trials)
    assert np.quantile(off, 0.95) < 1.0
    assert np.mean(cost) <= 0.5


def test_the_grid_shrinks_like_the_drift_and_follows_the_optimum() -> None:
    stages = telescope(WIDTHS, FIRST, 2, law()).stages
    ranges = [math.log(stage.lrs[-1] / stage.lrs[0]) for stage in stages]
    assert ranges == pytest.approx([ranges[0], ranges[0] / 2, ranges[0] / 4, 0.0], abs=1e-3)
    for before, stage in pairwise(stages):
        centre = math.sqrt(stage.lrs[0] * stage.lrs[-1])
        assert centre == pytest.approx(before.optimum, rel=1e-3)


def test_a_grid_grows_where_its_best_is_at_the_edge() -> None:
    # The optimum leaps by a factor of 30 at one width, far more than its grid foresees.
    found = telescope(WIDTHS, FIRST, 2, law(jump=(64, 30.0)))
    stage = found.stages[2]
    assert len(stage.lrs) > POINTS[2]
    assert not stage.at_grid_edge
    assert stage.optimum == pytest.approx(30 * LIMIT * math.exp(-5 / 64), rel=1e-3)
    steps = np.diff(np.log(stage.lrs))
    assert steps == pytest.approx(np.full(len(steps), steps[0]), rel=1e-2)
    low = telescope(WIDTHS, FIRST, 2, law(limit=LIMIT / 100)).stages[0]
    assert low.lrs[0] < FIRST[0]
    assert low.optimum == pytest.approx(LIMIT / 100 * math.exp(-5 / 16), rel=1e-3)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((1.0, 2.0, 4.0, 8.0), (0.25, 0.5, 1, 2, 4, 8, 16, 32)),
        ((1.0, 2.0, 4.0, 8.0, 16.0), (0.5, 1, 2, 4, 8, 16, 32, 64)),
        (tuple(2.0**k for k in range(9)), tuple(2.0**k for k in range(9))),
    ],
)
def test_the_first_grid_carries_on_the_optimizers_own(own: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert first_grid(own) == expected


def test_the_vertex_is_that_of_the_parabola_through_any_three_points() -> None:
    lrs = (1.0, 2.0, 7.0)
    for centre in (1.6, 2.0, 3.5):
        values = [5 + 3 * math.log(lr / centre) ** 2 for lr in lrs]
        assert vertex(lrs, values) == pytest.approx(centre)
    assert vertex(lrs, (1.0, 1.0, 1.0)) == 2.0
    assert vertex(lrs, (math.nan, 1.0, 2.0)) == 2.0
    assert vertex(lrs, (math.inf, 1.0, 2.0)) == 2.0


@pytest.mark.parametrize("widths", [(16,), (32, 16), (16, 16), (0, 16)])
def test_widths_must_increase(widths: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least two widths that increase"):
        telescope(widths, FIRST, 1, law())


def test_what_cannot_be_tuned_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least three learning rates, got 2"):
        telescope(WIDTHS, FIRST[:2], 1, law())
    with pytest.raises(ResultsError, match="no trial at width 32 reached the target"):
        telescope(WIDTHS, FIRST, 1, lambda width, lrs: law()(width, lrs) * (np.nan if width == 32 else 1.0))
