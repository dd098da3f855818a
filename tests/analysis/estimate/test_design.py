"""What further runs are expected to narrow, against analyses that have them."""

import dataclasses
import math

import numpy as np
import pytest

from analysis.estimate.draws import draw
from analysis.estimate.suggest.design import BRACKET, GOAL, INSIDE, LEFT, MOST, OUTSIDE, STEP, Cell, Design
from tests.analysis.estimate.known import SIZES as WIDE
from tests.analysis.estimate.known import known, noisy


def design(seeds: int = 3, own: float = 0.04, common: float = 0.0, sizes: np.ndarray = WIDE) -> Design:
    values = noisy(np.random.default_rng(0), own, seeds, common)[np.isin(WIDE, sizes)]
    return Design(draw(sizes.tolist(), known(values), 800, 0))


def new(seed: int, sizes: np.ndarray = WIDE) -> list[Cell]:
    return [(int(size), seed) for size in sizes]


@pytest.mark.parametrize("common", [0.0, 0.07])
@pytest.mark.parametrize("sizes", [WIDE, WIDE[3:6]])
def test_the_design_predicts_how_much_a_further_seed_narrows(common: float, sizes: np.ndarray) -> None:
    """Over 12 sweeps, whose draws are made again with one more seed at all or some batch sizes; that a
    smoother curve is learned from it, too, is not foreseen."""
    expected, realised = [], []
    for index in range(12):
        values = noisy(np.random.default_rng(index), 0.04, 4, common)
        values[~np.isin(WIDE, sizes), 3:] = np.nan
        before, after = (Design(draw(WIDE.tolist(), known(part), 800, 0)) for part in (values[:, :3], values))
        expected.append(before.width(new(3, sizes)))
        realised.append(float(after.places.std() / before.places.std()))
    assert np.exp(np.mean(np.log(expected))) == pytest.approx(np.exp(np.mean(np.log(realised))), rel=0.2)


def test_the_more_runs_the_narrower_and_what_is_far_tells_little() -> None:
    found = design()
    widths = [found.width(cells) for cells in ([], new(3), [*new(3), *new(4)])]
    assert widths == sorted(widths, reverse=True)
    assert (widths[0], widths[2] < 0.95) == (1.0, True)
    near, far = (
        math.log(found.width([(size, seed) for seed in (3, 4, 5)])) / found.examples(size) for size in (32, 512)
    )
    assert near < far / 5
    # what all seeds of a batch size share no further seed removes
    rough = Design(draw(WIDE.tolist(), known(noisy(np.random.default_rng(0), 0.01), variance=0.05**2), 800, 0))
    assert rough.width([*new(3), *new(4)]) > 0.97


def test_the_choice_meets_its_goal_or_stops_at_the_most() -> None:
    found = design(own=0.08)
    following = {int(size): range(3, 15) for size in WIDE}
    chosen = found.most_for_its_cost(following)
    assert 1 <= len(chosen) <= MOST
    assert len(set(chosen)) == len(chosen)
    assert len(chosen) == MOST or found.width(chosen) <= GOAL < found.width(chosen[:-1])
    assert found.most_for_its_cost({8: ()}) == []
    few = found.most_for_its_cost(following, goal=0.99)
    assert len(few) < len(chosen)
    assert len(found.most_for_its_cost(following, goal=0.99, least=len(few) + 2)) == len(few) + 2


def test_a_new_batch_size_is_dearer_by_its_search() -> None:
    found = design()
    known, unknown = found.cost([(32, 3)]), found.cost([(48, 3)])
    assert found.examples(32) < known == pytest.approx(found.examples(32) * (1 + STEP / 32))
    assert unknown == pytest.approx(INSIDE * found.examples(48) * (1 + STEP / 48))
    assert found.cost([(48, 3), (48, 4)]) == pytest.approx((INSIDE + 1) * found.examples(48) * (1 + STEP / 48))
    # beyond the others nothing says where its best learning rate lies, as yet
    for size in (int(WIDE[0]) // 2, int(WIDE[-1]) * 2):
        assert found.cost([(size, 3)]) == pytest.approx(OUTSIDE * found.examples(size) * (1 + STEP / size))


ROUGH = 0.06  # Deviation of the error that all seeds of a batch size share


def rough(seed: int, sizes: np.ndarray = WIDE) -> Design:
    values = noisy(np.random.default_rng(seed), 0.02)
    return Design(draw(WIDE.tolist(), known(values, variance=ROUGH**2), 800, 0))


@pytest.mark.parametrize("sizes", [WIDE, WIDE[3:6]])
def test_the_design_predicts_how_much_learning_rates_on_both_sides_narrow(sizes: np.ndarray) -> None:
    """Over 12 sweeps, whose draws are made again with a share of each error at all or some batch sizes; how alike the
    errors of neighbours are is not foreseen."""
    expected, realised = [], []
    for index in range(12):
        rng = np.random.default_rng(index)
        values, there = noisy(rng, 0.02), np.isin(WIDE, sizes)
        error, left = ROUGH * rng.standard_normal((2, len(WIDE)))
        error, left = np.where(there, error * math.sqrt(1 - LEFT), error), np.where(there, left * math.sqrt(LEFT), 0.0)
        before = Design(draw(WIDE.tolist(), known(values + (error + left)[:, None], variance=ROUGH**2), 800, 0))
        seen = known(values + np.where(there, left, error)[:, None], variance=ROUGH**2)
        seen = [
            dataclasses.replace(each, variance=LEFT * ROUGH**2) if known_ else each
            for each, known_ in zip(seen, there, strict=True)
        ]
        after = Design(draw(WIDE.tolist(), seen, 800, 0))
        expected.append(before.width([(int(size), None) for size in sizes]))
        realised.append(float(after.places.std() / before.places.std()))
    assert np.exp(np.mean(np.log(expected))) == pytest.approx(np.exp(np.mean(np.log(realised))), rel=0.2)
    assert np.mean(realised) < 0.9


def test_learning_rates_go_before_seeds_where_they_are_what_is_not_known() -> None:
    following, believed = {int(size): range(3, 15) for size in WIDE}, [16, 32, 64]
    chosen = rough(0).most_for_its_cost(following, believed=believed)
    assert chosen[0] in [(size, None) for size in believed]
    assert len(set(chosen)) == len(chosen)
    assert rough(0).most_for_its_cost({}, goal=0.0, believed=[16]) == [(16, None)]
    seeds = [seed for _, seed in rough(0).most_for_its_cost(following)]
    assert None not in seeds
    assert all(seed is not None for _, seed in design().most_for_its_cost(following, believed=believed))


def test_learning_rates_on_both_sides_are_paid_once_whatever_else_runs() -> None:
    found = design()
    one = found.examples(32) * (1 + STEP / 32)
    assert found.cost([(32, None)]) == pytest.approx((BRACKET + 3) * one)
    assert found.cost([(32, None), (32, 3)]) == pytest.approx((BRACKET + 4) * one)
    assert design(seeds=1).cost([(32, None)]) < found.cost([(32, None)]) / 1.5
