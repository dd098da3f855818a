"""``--search random``: a sequence that goes on, a box that is filled, and an answer as of any list of trials."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from sweeps.search.forecast import play
from sweeps.search.quasirandom import drawn_lrs, points, radical_inverse
from sweeps.search.search import Search
from sweeps.spec.axes import with_axes
from sweeps.spec.cell import Study
from tests.sweeps.joint_worlds import MOMENTA, World, analysed
from tests.sweeps.joint_worlds import sweep as joint_sweep
from tests.sweeps.simulation import run_search, simulate, small_sweep

BOX = small_sweep(optimizers=(Choice(name="adamw"),), search="random", trials=8, lr_box=(1e-4, 1e-1))
STUDY = Study("adamw", 16)


def test_the_sequence_is_haltons_shifted() -> None:
    found = np.array(points(3, 40, "any"))
    plain = qmc.Halton(3, scramble=False).random(40)
    shift = (found - plain) % 1.0
    assert np.allclose(shift, shift[0])
    assert 0.0 <= found.min() < found.max() < 1.0
    assert not np.allclose(shift[0], np.array(points(3, 1, "other")[0]))


@given(st.integers(0, 10**6), st.integers(2, 11))
def test_a_radical_inverse_is_the_digits_turned_round(number: int, base: int) -> None:
    digits = []
    while number > sum(digit * base**place for place, digit in enumerate(digits)):
        digits.append(number // base ** len(digits) % base)
    assert radical_inverse(number, base) == pytest.approx(sum(d / base ** (p + 1) for p, d in enumerate(digits)))


@pytest.mark.parametrize("count", [1, 5, 16, 33])
def test_more_trials_move_no_earlier_one(count: int) -> None:
    joint = with_axes(small_sweep(optimizers=(Choice(name="sgd"),), search="random"), ["momentum=0.8,0.9,0.95"])
    for asked in (BOX, joint):
        for study in asked.studies():
            few, many = (drawn_lrs(asked.replace(trials=trials), study) for trials in (count, 3 * count))
            assert set(few) <= set(many)


def test_the_box_is_filled_and_batch_sizes_differ() -> None:
    lrs = drawn_lrs(BOX, STUDY)
    assert len(lrs) == 8
    assert min(lrs) >= 1e-4
    assert max(lrs) <= 1e-1
    # in each quarter of the box, in ln lr, two of eight
    quarters = [int(4 * math.log(lr / 1e-4) / math.log(1e3)) for lr in lrs]
    assert [quarters.count(quarter) for quarter in range(4)] == pytest.approx([2, 2, 2, 2], abs=1)
    assert not set(lrs) & set(drawn_lrs(BOX, Study("adamw", 64)))


def test_the_values_of_an_axis_share_the_trials() -> None:
    alone = small_sweep(optimizers=(Choice(name="sgd"),), search="random", trials=24)
    asked = with_axes(alone, ["momentum=0.8,0.9,0.95"])
    for size in asked.batch_sizes:
        counts = [len(drawn_lrs(asked, study)) for study in asked.studies() if study.batch_size == size]
        assert sum(counts) == 24
        assert min(counts) >= 6
    outer = with_axes(alone, [], ["momentum=0.8,0.9"])
    assert all(len(drawn_lrs(outer, study)) == 24 for study in outer.studies())


def test_a_search_runs_every_point_on_every_seed_and_goes_on_with_more() -> None:
    found = run_search(Search(BOX))
    assert len(found) == 8 * 4 * 2
    more = Search(BOX.replace(trials=12), found.values())
    rest = run_search(more)
    assert len(rest) == 4 * 4 * 2
    assert not set(rest) & set(found)
    assert set(more.why(STUDY).values()) == {"drawn from the box"}
    outside = simulate(Search(BOX.replace(search="grid")).next(), None, None)  # stored, and none of the points
    assert Search(BOX, [outside]).counts(Study(*outside_study(outside.config)))[0] == 0


def outside_study(config: object) -> tuple[str, int]:
    return str(config.optimizer), config.batch_size  # type: ignore[attr-defined]


def test_the_best_of_the_box_is_near_the_truth() -> None:
    world = World(0.03, 0)
    asked = joint_sweep().replace(search="random", trials=48, lr_box=(0.02, 4.0))
    answer = analysed(asked, play(Search(asked), world.end, workers=2).results, 200)
    assert answer.critical_batch_size == pytest.approx(40.0, rel=0.35)
    right = [point.tuned == f"momentum={MOMENTA[world.best_momentum(point.batch_size)]}" for point in answer.points]
    assert sum(right) >= 3


def test_a_best_near_an_end_of_the_box_is_told() -> None:
    asked = joint_sweep().replace(search="random", trials=24, lr_box=(0.01, 0.05))
    answer = analysed(asked, play(Search(asked), World(0.03, 0).end, workers=2).results, 100)
    assert [point.at_grid_edge for point in answer.points][-1]
    assert "edge" in str(answer.verdict)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trials": 0}, "trials must be"),
        ({"lr_box": (1e-1, 1e-3)}, "lr_box must rise"),
        ({"lr_box": (0.0, 1e-3)}, "lr_box must rise"),
        ({"lrs": (1e-3,)}, "draws its learning rates from a box"),
    ],
)
def test_what_is_no_box(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BOX.replace(**changes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "4"], "are of --search random"),
        (["--lr-box", "1e-4..1e-1"], "are of --search random"),
        (["--search", "random", "--lr-box", "1e-4"], "two numbers"),
        (["--search", "random", "--lr-box", "1e-4..a"], "numbers separated"),
        (["--search", "random", "--lr-box", "1..nan"], "must rise"),
        (["--search", "random", "--lrs", "1e-3"], "from a box"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], said: str, run: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = run("sweep", *words, "--dry-run")
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
