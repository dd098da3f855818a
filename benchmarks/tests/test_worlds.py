"""Curves whose least product is known: held where they are smooth, doubted where they are not."""

import math

import numpy as np
import pytest

from benchmarks.telling import holds
from benchmarks.worlds import CRITICAL, WORLDS, logs, measure, tables


@pytest.mark.parametrize("name", [name for name, world in WORLDS.items() if not world.common])
def test_truth_is_where_the_product_of_steps_and_examples_is_least(name: str) -> None:
    """On a grid of a hundred thousand batch sizes; a smooth world has it between those that it runs."""
    for runs in logs(WORLDS[name], 0).values():
        sizes = CRITICAL * np.exp(np.linspace(-12, 12, 100_001))
        product = np.log(sizes) + 2 * np.log(runs.truth.steps(sizes))
        truth = runs.truth.least_product
        if 0 < product.argmin() < 100_000:
            assert truth == pytest.approx(sizes[product.argmin()], rel=1e-3)
        else:
            assert truth == (0.0 if product[0] < product[-1] else math.inf)
        if WORLDS[name].smooth:
            assert runs.sizes[0] < truth < runs.sizes[-1]


def test_a_table_holds_every_run_that_was_made() -> None:
    """Stopped ones are censored at the steps run, missing ones have no row."""
    table, _ = tables(WORLDS["stopped at 1.25 times the fewest steps"], 0)
    assert len(table) == 8 * 5 * 3
    assert 0 < table["censored"].sum() < len(table) / 2
    assert table["steps"].notna().all()
    missing, _ = tables(WORLDS["a third of other learning rates' seeds missing"], 0)
    assert 70 < len(missing) < 110
    diverged, _ = tables(WORLDS["learning rates above the best diverge"], 0)
    assert diverged.loc[diverged["steps"].isna(), "censored"].all()
    assert diverged["steps"].isna().any()


@pytest.mark.parametrize(
    ("ends", "held"),
    [((90, 110), True), ((101, 110), False), ((90, 99), False), ((None, 99), False), ((None, None), True)],
)
def test_an_open_end_holds_all_on_its_side(ends: tuple[float | None, float | None], held: bool) -> None:
    assert holds(ends, 100.0) is held


def slow(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    [
        "exponent 1",
        *slow(
            "exponent 1, shared seeds", "exponent falls from 1 to 0.6", "examples and steps U-shaped",
            "logarithmic tail", "stopped by a budget of 11 S_0", "a third of other learning rates' seeds missing",
            "learning rates above the best diverge", "noisy quadratic, tuned SGD",
            "two optimizers, knees 0.7 and 1.5",
        ),
    ],
)  # fmt: skip
def test_smooth_curves_are_ok_and_held(name: str) -> None:
    """12 sweeps. At 5 % more than 3 silent errors have probability 0.002; at 90 % fewer than 8 that are ok, 0.004.
    Intervals are narrow enough to be quoted."""
    found = measure(name, sweeps=12, resamples=200)
    assert found["silent"] <= 0.25
    assert found["ratio_silent"] <= 0.25
    assert found["ok"] >= 0.65
    assert found["half_width"] <= 0.3
    assert found["ratio"] == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("large batches 20 % slower", "points are off the curve"),
        *(
            pytest.param(name, verdict, marks=pytest.mark.slow)
            for name, verdict in (
                ("perfect scaling, then none", "points are off the curve"),
                ("perfect scaling, then the power 0.3, 2 % noise", "points are off the curve"),
                ("least product above all batch sizes", "above the measured batch sizes"),
                ("least product below all batch sizes", "below the measured batch sizes"),
            )
        ),
    ],
)
def test_worlds_that_change_at_once_or_end_too_early_are_seldom_ok(name: str, verdict: str) -> None:
    """9 of 10 and more are not: of 6 sweeps fewer than 4 have probability 0.016 at 90 %."""
    found = measure(name, sweeps=6, resamples=200)
    assert found["verdicts"][verdict] >= 4
    assert found["ok"] <= 0.34
