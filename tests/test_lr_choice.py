"""The winning learning rate against a slow twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cbs.lr_choice import best_lr, best_lr_many, censored

NAN, INF = math.nan, math.inf


def slow_best_lr(table: list[list[float]]) -> int | None:
    """Most seeds first, then the smallest product of steps; whole numbers, so that ties are exact."""
    best, best_key = None, None
    for row, steps in enumerate(table):
        reached = [int(value) for value in steps if math.isfinite(value)]
        key = (-len(reached), math.prod(reached))
        if reached and (best_key is None or key < best_key):
            best, best_key = row, key
    return best


tables = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6),
    elements=st.integers(1, 10_000).map(float) | st.sampled_from([NAN, INF]),
)


def agrees(table: np.ndarray, found: int | None) -> bool:
    """Equal to the twin, or a tie that rounding of the logarithms decides the other way."""
    expected = slow_best_lr(table.tolist())
    if found == expected or found is None or expected is None:
        return found == expected
    counts = np.isfinite(table).sum(axis=1)
    products = [
        math.prod(int(value) for value in row if math.isfinite(value)) for row in table[[found, expected]].tolist()
    ]
    return bool(counts[found] == counts[expected]) and math.isclose(
        *map(math.log, products), rel_tol=1e-12, abs_tol=1e-12
    )


@given(table=tables)
def test_agrees_with_the_slow_twin(table: np.ndarray) -> None:
    assert agrees(table, best_lr(table))


@given(
    stack=hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4)),
        elements=st.sampled_from([1.0, 5.0, 9.0, NAN]),
    )
)
def test_many_tables_are_each_table(stack: np.ndarray) -> None:
    assert best_lr_many(stack).tolist() == [-1 if (row := best_lr(table)) is None else row for table in stack]


@given(table=tables, order=st.randoms())
def test_the_order_of_seeds_does_not_matter(table: np.ndarray, order: object) -> None:
    shuffled = table.copy()
    for row in shuffled:
        order.shuffle(row)
    assert agrees(table, best_lr(shuffled))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([[NAN, INF], [NAN, NAN]], None),
        ([[10, NAN], [90, 95]], 1),
        ([[10, 1000], [90, 95]], 1),
        ([[100, 100], [80, 110]], 1),
        ([[50, 60], [50, 60]], 0),
        ([[7]], 0),
        ([[20, 20], [0, 20]], 1),
    ],
    ids=["none reached", "more seeds win", "not the luckiest", "geometric mean", "tie", "single", "reached at step 0"],
)
def test_worked_tables(table: list[list[float]], expected: int | None) -> None:
    with np.errstate(all="raise"):
        assert best_lr(np.array(table, dtype=float)) == expected


def test_censored_drops_what_pruning_would_have_stopped_and_nothing_else():
    steps = np.array([[100.0, 260.0], [131.0, 200.0], [130.0, np.nan]])
    expected = np.array([[100.0, 260.0], [np.nan, 200.0], [130.0, np.nan]])
    np.testing.assert_array_equal(censored(steps, 1.3), expected)
    np.testing.assert_array_equal(censored(steps, None), steps)
    assert np.isnan(censored(np.full((2, 2), np.nan), 1.3)).all()


def test_censored_never_changes_the_best_of_a_seed():
    steps = np.random.default_rng(0).lognormal(5.0, 1.0, size=(6, 40))
    np.testing.assert_array_equal(np.nanmin(censored(steps, 1.0001), axis=0), steps.min(axis=0))
