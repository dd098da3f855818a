"""Which further trials narrow an interval, and by how much."""

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.estimate.draws import draw
from analysis.estimate.suggest import suggest
from analysis.estimate.suggest.design import GOAL, MOST, SEARCH, STEP, Design
from tests.analysis.estimate.known import SIZES as WIDE
from tests.analysis.estimate.known import known, noisy
from tests.analysis.estimate.test_suggest import answer, healthy


def design(seeds: int = 3, own: float = 0.04, common: float = 0.0, sizes: np.ndarray = WIDE) -> Design:
    values = noisy(np.random.default_rng(0), own, seeds, common)[np.isin(WIDE, sizes)]
    return Design(draw(sizes.tolist(), known(values), 800, 0))


def new(seed: int, sizes: np.ndarray = WIDE) -> list[tuple[int, int]]:
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


def test_a_known_seed_tells_the_shape_at_one_batch_size_and_a_new_one_hardly() -> None:
    """Where seeds share most of their noise."""
    apart = design(common=0.1, own=0.02, sizes=WIDE[[0, 1, 2, 4, 5, 6, 7]])
    assert apart.draws.shared > 0.6
    assert apart.width([(16, 0), (16, 1), (16, 2)]) < apart.width([(16, 7), (16, 8), (16, 9)]) - 0.01


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


def test_an_answer_that_is_narrow_already_can_be_narrowed_further(tmp_path: Path) -> None:
    """As a verdict other than its width may ask for it."""
    healthy(tmp_path, seeds=2)
    found = suggest(answer(tmp_path), goal=5.0)
    assert found is not None
    assert "narrow the interval most per example" in found.reasons[0]


def test_a_new_batch_size_is_dearer_by_its_search() -> None:
    found = design()
    known, unknown = found.cost([(32, 3)]), found.cost([(48, 3)])
    assert found.examples(32) < known == pytest.approx(found.examples(32) * (1 + STEP / 32))
    assert unknown == pytest.approx(SEARCH * found.examples(48) * (1 + STEP / 48))
    assert found.cost([(48, 3), (48, 4)]) == pytest.approx((SEARCH + 1) * found.examples(48) * (1 + STEP / 48))
