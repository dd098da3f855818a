"""Simulated sweeps that find their batch sizes, as the benchmark of prices runs them."""

import pytest

from benchmarks.answers import FIRST_SIZES, NOISES, World, ended


@pytest.fixture(scope="module")
def found():
    return [ended("found", 0.2, number) for number in (6, 21, 45)]


def test_a_sweep_ends_with_a_narrow_answer_that_holds_the_truth(found):
    """At 3 % noise: three intervals of 95 % do not hold it once in 8,000 times."""
    assert {one.verdict for one in found} == {"ok"}
    assert any(one.covered for one in found)
    assert all(one.width <= 0.2 and one.price < 40 for one in found)
    assert all(one.sizes[0] < World(one.number).truth < one.sizes[-1] for one in found)


def test_the_worlds_are_drawn_over_all_that_is_said():
    worlds = [World(number) for number in range(200)]
    assert {world.noise for world in worlds} == set(NOISES)
    places = [world.truth for world in worlds]
    assert FIRST_SIZES[0] / 3 < min(places) < FIRST_SIZES[0] / 2
    assert 20 * FIRST_SIZES[-1] < max(places) < 30 * FIRST_SIZES[-1]
    for world in worlds[:10]:
        products = {size: size * world.steps(size) ** 2 for size in (world.truth / 1.1, world.truth, world.truth * 1.1)}
        assert min(products, key=products.get) == world.truth
        assert world.price == pytest.approx(world.truth * world.steps(world.truth))
