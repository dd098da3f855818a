"""The winning learning rate against a slow twin."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cbs.noise_scale.interval import correction, product_ends
from cbs.trial.lr_choice import at_edges, best_lr, best_of_standings, censored, cliff, standings, vertex

NAN, INF = math.nan, math.inf


tables = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6),
    elements=st.integers(1, 10_000).map(float) | st.sampled_from([NAN, INF]),
)


def slow_keys(table: np.ndarray, ran: np.ndarray) -> dict[int, tuple[float, float]]:
    """Of every learning rate that some seed reached the target at: the share of its trials that failed, and its
    effect in ``ln steps = learning rate + seed`` by general least squares, one equation per trial that did; the mean
    where all learning rates have all seeds or none."""
    reached = np.isfinite(table)
    lrs, seeds = table.shape
    cells = [(row, column) for row in range(lrs) for column in range(seeds) if reached[row, column]]
    if not cells:
        return {}
    logs = np.array([math.log(table[cell]) for cell in cells])
    design = np.zeros((len(cells), lrs + seeds))
    for index, (row, column) in enumerate(cells):
        design[index, [row, lrs + column]] = 1.0
    effects = np.linalg.lstsq(design, logs - logs.mean(), rcond=None)[0]
    if all(count in (0, seeds) for count in reached.sum(axis=1)):
        effects = [np.log(steps).mean() if np.isfinite(steps).all() else INF for steps in table]
    return {
        row: (1 - reached[row].sum() / (reached[row] | ran[row]).sum(), float(effects[row]))
        for row in range(lrs)
        if reached[row].any()
    }


def agrees(table: np.ndarray, found: int | None, ran: np.ndarray | None = None) -> bool:
    """Equal to the twin, or a tie but for rounding."""
    keys = slow_keys(table, np.ones(table.shape, dtype=bool) if ran is None else ran)
    if found is None or not keys:
        return found is None and not keys
    fewest = min(share for share, _ in keys.values())
    least = min(effect for share, effect in keys.values() if share < fewest + 1e-9)
    return found in keys and keys[found][0] < fewest + 1e-9 and keys[found][1] < least + 1e-8


@given(table=tables)
def test_agrees_with_the_slow_twin(table: np.ndarray) -> None:
    assert agrees(table, best_lr(table))


@given(table=tables, data=st.data())
def test_agrees_with_the_slow_twin_where_trials_were_never_run(table: np.ndarray, data: st.DataObject) -> None:
    """Those that reached the target were run whatever is said of them."""
    ran = data.draw(hnp.arrays(bool, table.shape))
    assert agrees(table, best_lr(table, ran), ran)


@given(
    stack=hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4)),
        elements=st.sampled_from([1.0, 5.0, 9.0, NAN]),
    ),
    data=st.data(),
)
def test_many_tables_are_each_table(stack: np.ndarray, data: st.DataObject) -> None:
    ran = data.draw(hnp.arrays(bool, stack.shape))
    for told in (None, ran):
        each = [best_lr(table, None if told is None else ran[index]) for index, table in enumerate(stack)]
        assert best_of_standings(*standings(stack, told)).tolist() == [-1 if row is None else row for row in each]


@pytest.mark.parametrize(
    ("row", "tried", "expected"),
    [
        (0, [1, 1, 1], (True, False)),
        (1, [1, 1, 1], (False, False)),
        (2, [1, 1, 1], (False, True)),
        (0, [1], (True, True)),
        (1, [0, 1, 1], (True, False)),
        (1, [1, 1, 0], (False, True)),
    ],
)
def test_edges_of_what_was_tried(row: int, tried: list[int], expected: tuple[bool, bool]) -> None:
    assert at_edges(row, [bool(each) for each in tried]) == expected
    assert at_edges(row, np.array(tried, dtype=bool)) == expected


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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("below", "above"), [(0.0, 1.0), (1.0, 0.0)])
def test_learning_rates_that_are_the_same_to_rounding_have_no_vertex_between_them(below: float, above: float) -> None:
    assert vertex(0.3, 0.4, below, above) == (0.0, 0.0)
    assert vertex(0.3, 0.3, 1.0, 1.0) == (0.0, 0.0)
    assert vertex(0.1, 0.9, 1.0, 1.0) == pytest.approx((-0.4, 0.08)), "0.5 (x + 0.4)^2 - 0.08"


@pytest.mark.parametrize(
    ("places", "values", "beyond"),
    [
        ((-1.5, -0.5, 0.0, 1.0), (2.47, 1.97, 1.5, 5.38), True),  # 4 times as steep, but hardly bent below
        ((-1.0, 0.0, 1.0), (0.4, 0.0, 4.0), True),
        ((-1.0, 0.0, 1.0), (0.4, 0.0, INF), True),
        ((-1.0, 0.0, 1.0), (0.4, 0.0, 3.0), False),
        ((-1.0, 0.0, 1.0), (4.0, 0.0, 0.1), False),  # a cliff has no lower side
        ((-2.0, -1.0, 0.0, 2.0), (3.61, 0.81, 0.01, 4.41), False),  # a parabola with its vertex at 0.1 below 0
        ((-2.0, -0.5, 0.0, 2.0), (4.0, 0.25, 0.0, 4.0), False),
        ((-2.0, -1.0, 0.0, 1.0), (INF, 0.3, 0.0, 4.0), True),
        ((-2.0, -1.0, 0.0, 1.0), (INF, INF, 0.0, 4.0), False),
    ],
)
def test_a_neighbour_that_the_curve_cannot_explain_may_lie_beyond_a_cliff(places, values, beyond) -> None:
    assert cliff(np.array(places), np.array(values), len(places) - 2) is beyond


def test_a_known_factor_scales_the_interval() -> None:
    assert product_ends((3.0, (2.0, 5.0)), (10.0, (10.0, 10.0))) == pytest.approx((20.0, 50.0))


@pytest.mark.parametrize("spreads", [(0.1, 0.2), (0.05, 0.5), (0.3, 0.3)])
def test_the_interval_of_a_product_covers_as_its_factors_do(spreads: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    truth = np.array([7.0, 30.0])
    hits = 0
    repetitions = 4000
    for values in truth * np.exp(rng.normal(size=(repetitions, 2)) * spreads):
        factors = [
            (value, (value * math.exp(-1.96 * spread), value * math.exp(1.96 * spread)))
            for value, spread in zip(values, spreads, strict=True)
        ]
        low, high = product_ends(*factors)
        hits += low < truth.prod() < high
    # exact on the log axis: 95 % within four standard errors of 4000 draws, 1.4 %
    assert abs(hits / repetitions - 0.95) < 0.014


def test_an_open_end_stays_open() -> None:
    assert product_ends((3.0, (None, 5.0)), (2.0, (1.0, 4.0)))[0] is None
    assert product_ends((3.0, (2.0, 5.0)), (2.0, (1.0, None)))[1] is None


def test_correction_fades_with_the_batch_size() -> None:
    factors = [correction(30.0, (20.0, None), batch_size) for batch_size in (3.0, 30.0, 3e9)]
    assert [factor for factor, _ in factors] == pytest.approx([11.0, 2.0, 1.0])
    assert [ends for _, ends in factors][:1] == [(pytest.approx(1 + 20 / 3), None)]


def test_parts_of_a_table_without_a_common_seed_are_compared_by_their_means() -> None:
    steps = np.array([[100.0, NAN], [NAN, 90.0]])
    assert best_lr(steps, np.isfinite(steps)) == 1


def test_censored_drops_what_pruning_would_have_stopped_and_nothing_else():
    steps = np.array([[100.0, 260.0], [131.0, 200.0], [130.0, np.nan]])
    expected = np.array([[100.0, 260.0], [np.nan, 200.0], [130.0, np.nan]])
    np.testing.assert_array_equal(censored(steps, 1.3), expected)
    np.testing.assert_array_equal(censored(steps, None), steps)
    assert np.isnan(censored(np.full((2, 2), np.nan), 1.3)).all()


def test_censored_never_changes_the_best_of_a_seed():
    steps = np.random.default_rng(0).lognormal(5.0, 1.0, size=(6, 40))
    np.testing.assert_array_equal(np.nanmin(censored(steps, 1.0001), axis=0), steps.min(axis=0))
