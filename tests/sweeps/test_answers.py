"""Simulated sweeps that find their batch sizes, as the benchmark of prices runs them."""

import math

import pytest

from benchmarks.answers import EIGHT, FIRST_SIZES, NOISES, RIVALS, World, answer_of, ended, plain, row


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


def test_a_plain_grid_gets_no_more_examples_than_it_is_given():
    world = World(45)
    results = plain(world, 10 * world.price)
    spent = sum(result.final_examples for result in results)
    assert 10 * world.price <= spent < 10 * world.price + results[-1].final_examples + 1
    assert {result.config.batch_size for result in results} <= set(EIGHT)
    assert set(RIVALS) == {"plain", "tpe"}
    assert answer_of(world.sweep(), results).verdict != "ok"


def test_a_row_says_the_shares(found):
    cells = [cell.strip() for cell in row("3 %", found, 0.2).strip("|").split("|")]
    assert cells[:3] == ["3 %", "100", "100"]
    assert float(cells[5]) == pytest.approx(sorted(one.width for one in found)[1], abs=0.006)
    assert math.isclose(float(cells[6].split()[0]), sorted(one.price for one in found)[1], abs_tol=0.51)
