"""What a study needs next: every rule against arithmetic done the slow way."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbs.trial.lr_choice import Expected
from sweeps.search.bracket import Rules, bracketed, expected_loss, needed, optimum, possible_gains
from sweeps.search.trial_table import (
    CURVATURE,
    OCTAVE,
    SEED_DEVIATION,
    SEED_WEIGHT,
    Lattice,
    TrialOutcome,
    TrialTable,
    two_rates,
)

GRID = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
LATTICE, RULES = Lattice(GRID), Rules()


def reached(**steps: float) -> dict[tuple[float, int], TrialOutcome]:
    """Trials on seed 0 by position in octaves: ``m1=120`` for one octave below the default."""
    octaves = {"m2": -2, "m1": -1, "mh": -0.5, "z": 0, "h": 0.5, "p1": 1, "p2": 2}
    return {
        (LATTICE.lr(round(octaves[name] * OCTAVE)), 0): TrialOutcome(value, 0.0 if math.isfinite(value) else math.inf)
        for name, value in steps.items()
    }


@settings(max_examples=60, deadline=None)
@given(st.floats(-0.3, 0.3), st.floats(0.01, 0.3))
def test_the_expected_loss_is_that_of_normal_draws(mean: float, deviation: float) -> None:
    draws = np.random.default_rng(0).normal(mean, deviation, 200_000)
    assert expected_loss(mean, deviation) == pytest.approx(np.maximum(0, -draws).mean(), abs=0.01 * deviation)


def test_seed_noise_is_what_is_left_around_learning_rate_and_seed() -> None:
    rng = np.random.default_rng(1)
    logs = 6 + rng.normal(0, 1, (3, 1)) + rng.normal(0, 0.5, (1, 150)) + rng.normal(0, 0.08, (3, 150))
    there = rng.random((3, 150)) < 0.8
    there[:, 0] = True
    seen = {(GRID[i], j): TrialOutcome(math.exp(logs[i, j]), 0.0) for i in range(3) for j in range(150) if there[i, j]}
    rows, columns = np.nonzero(there & (there.sum(axis=0) > 1))
    design = np.hstack([np.eye(3)[rows], np.eye(150)[columns]])
    values = logs[rows, columns]
    rest = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    freedom = len(values) - np.linalg.matrix_rank(design)
    wanted = math.sqrt((SEED_WEIGHT * SEED_DEVIATION**2 + rest @ rest) / (SEED_WEIGHT + freedom))
    table = TrialTable(seen, range(150), LATTICE, None)
    assert table.seed_deviation() == pytest.approx(wanted, rel=1e-4)
    assert wanted == pytest.approx(0.08, rel=0.15)


def test_one_seed_says_nothing_of_its_noise_and_many_at_one_learning_rate_their_scatter() -> None:
    assert TrialTable(reached(m1=120, z=100, p1=120), [0], LATTICE, 1.3).seed_deviation() == pytest.approx(
        SEED_DEVIATION
    )
    values = np.exp(np.random.default_rng(0).normal(5, 0.1, 60))
    seen = {(4e-3, seed): TrialOutcome(value, 0.0) for seed, value in enumerate(values)}
    assert TrialTable(seen, range(60), LATTICE, None).seed_deviation() == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(
    ("seen", "position"),
    [
        (reached(m1=100, z=112, p1=140), -2 * OCTAVE),
        (reached(m1=140, z=112, p1=100), 2 * OCTAVE),
        (reached(m1=math.nan, z=math.nan, p1=math.nan), -3 * OCTAVE),
        (reached(m1=1000, z=400, p1=160), 3 * OCTAVE),
        (reached(m1=130, z=100, p2=140), OCTAVE),
    ],
    ids=["lower", "upper", "all diverged", "far", "a gap of two"],
)
def test_the_first_thing_is_a_worse_learning_rate_on_either_side(seen, position) -> None:
    (ask,) = needed(seen, [0, 1], LATTICE, RULES)
    assert (LATTICE.position(ask.lr), ask.seed) == (position, 0)
    assert ask.why


def test_missed_targets_lead_to_where_training_came_nearest_and_upwards_where_nothing_moved() -> None:
    seen = {(LATTICE.lr(o * OCTAVE), 0): TrialOutcome(math.nan, d) for o, d in ((-1, 0.5), (0, 0.6), (1, 0.7))}
    assert LATTICE.position(needed(seen, [0], LATTICE, RULES)[0].lr) < -OCTAVE
    still = {place: TrialOutcome(math.nan, 1.0 - 1e-6 * place[0]) for place in seen}
    assert LATTICE.position(needed(still, [0], LATTICE, RULES)[0].lr) > OCTAVE
    inside = {(LATTICE.lr(o * OCTAVE), 0): TrialOutcome(math.nan, d) for o, d in ((-1, 0.5), (0, 0.4), (1, 0.7))}
    assert needed(inside, [0], LATTICE, RULES) == []


def test_below_a_cliff_a_window_of_less_than_a_factor_of_two_is_looked_for_where_nothing_reached_the_target() -> None:
    def seen(*ends: tuple[float, float]) -> dict[tuple[float, int], TrialOutcome]:
        return {(LATTICE.lr(round(octaves * OCTAVE)), 0): TrialOutcome(math.nan, end) for octaves, end in ends}

    flat = ((-1, 0.5), (0, 0.5))
    for ends, position in (
        ((*flat, (1, math.inf)), OCTAVE // 2),
        ((*flat, (0.5, math.inf), (1, math.inf)), OCTAVE // 4),
        ((*flat, (0.5, 0.4), (1, math.inf)), 3 * OCTAVE // 4),
        ((*flat, (3, math.inf)), 3 * OCTAVE // 2),
    ):
        (ask,) = needed(seen(*ends), [0], LATTICE, RULES)
        assert LATTICE.position(ask.lr) == position
        assert "no lower learning rate reached the target" in ask.why
    assert needed(seen(*flat, (0.25, math.inf)), [0], LATTICE, RULES) == []
    assert needed(seen((-1, math.inf), (0, 0.5), (1, 0.6)), [0], LATTICE, RULES) == []
    assert "fewer steps" in needed(reached(m1=120, z=100, p1=math.nan), [0], LATTICE, RULES)[0].why


def test_a_bracket_that_is_closed_asks_for_the_seeds_of_the_winner() -> None:
    asks = needed(reached(m1=128, z=100, p1=128), [0, 1, 2], LATTICE, RULES)
    assert {(ask.lr, ask.seed) for ask in asks} == {(4e-3, 1), (4e-3, 2)}


def test_a_learning_rate_that_can_still_be_best_gets_more_seeds_and_one_that_cannot_none() -> None:
    close = reached(m1=128, z=100, p1=100.5, p2=160) | {(4e-3, seed): TrialOutcome(100, 0.0) for seed in range(1, 8)}
    asks = needed(close, range(8), LATTICE, Rules(gain=9.0))
    assert {(ask.lr, ask.seed) for ask in asks} == {(8e-3, 1)}
    again = needed(close | {(8e-3, 1): TrialOutcome(100, 0.0)}, range(8), LATTICE, Rules(gain=9.0))
    assert {(ask.lr, ask.seed) for ask in again} == {(8e-3, 2), (8e-3, 3)}
    clear = reached(m1=128, z=100, p1=125) | {(4e-3, seed): TrialOutcome(100, 0.0) for seed in range(1, 8)}
    assert needed(clear, range(8), LATTICE, Rules(gain=9.0)) == []


@pytest.mark.parametrize(
    ("winner", "had", "asked"),
    [
        (99.0, 1, {1, 2}),  # three in any case
        (99.0, 3, set()),  # one or the other, as chance has it
        (80.0, 3, {3, 4, 5}),  # as many again where it gains much
        (70.0, 3, {3, 4, 5}),  # and where those beside it would have been pruned
    ],
)
def test_a_new_winner_repeats_seeds_that_have_run_beside_it_only_if_it_gains_much(
    winner: float, had: int, asked: set[int]
) -> None:
    seen = reached(m1=160, p2=160) | {(4e-3, seed): TrialOutcome(100.0, 0.0) for seed in range(8)}
    seen |= {(8e-3, seed): TrialOutcome(winner, 0.0) for seed in range(had)}
    rules = Rules(gain=9.0)
    asks = needed(seen, range(8), LATTICE, rules)
    assert {(ask.lr, ask.seed) for ask in asks} == {(8e-3, seed) for seed in asked}
    # those without a run beside it come first
    asks = needed(seen, range(9), LATTICE, rules)
    assert {(ask.lr, ask.seed) for ask in asks} == {(8e-3, 8)}
    # a seed that missed the target beside it tells nothing of how long it takes
    missed = seen | {(4e-3, 7): TrialOutcome(math.nan, 0.1)}
    assert (8e-3, 7) in {(ask.lr, ask.seed) for ask in needed(missed, range(8), LATTICE, rules)}


def test_a_side_that_is_worse_by_less_than_the_noise_does_not_close_a_bracket() -> None:
    """As of images at batch size 16: 278 steps, 285 at twice the rate, and far fewer at four times."""
    (ask,) = needed(reached(m1=400, z=278, p1=285), [0, 1], LATTICE, RULES)
    assert (ask.lr, ask.seed) == (16e-3, 0)
    assert "no higher learning rate is worse than 0.004 by more than the noise" in ask.why
    (below,) = needed(reached(m1=285, z=278, p1=400), [0, 1], LATTICE, RULES)
    assert below.lr == 1e-3
    closed = needed(reached(m1=400, z=278, p1=285, p2=400), [0, 1], LATTICE, RULES)
    assert all(ask.lr < 16e-3 for ask in closed)
    assert bracketed(reached(m1=400, z=278, p1=350), [0], LATTICE, RULES)
    assert not bracketed(reached(m1=400, z=278, p1=285), [0], LATTICE, RULES)


def test_other_batch_sizes_close_what_the_noise_leaves_open_where_they_are_sure() -> None:
    seen = reached(m1=400, z=278, p1=285)
    for place, deviation, asked in ((4e-3, 0.2, False), (4e-3, 0.6, False), (4e-3, 0.8, True), (8e-3, 0.2, True)):
        told = replace(RULES, expected=Expected(math.log(place), deviation))
        beyond = any(ask.lr == 16e-3 for ask in needed(seen, [0], LATTICE, told))
        assert beyond == asked
    # what is worse beyond the noise needs nobody
    far = replace(RULES, expected=Expected(math.log(64e-3), 0.1))
    assert all(ask.lr < 16e-3 for ask in needed(reached(m1=400, z=278, p1=350), [0], LATTICE, far))


def outcomes(**ends: float) -> dict[tuple[float, int], TrialOutcome]:
    """Trials on seed 0 by position in octaves, ``m4=0.5`` for four below the default: steps if above 1, else the
    distance to the target of one that missed it, infinite if it diverged."""
    octaves = {name: int(name.replace("m", "-").replace("p", "").replace("z", "0")) for name in ends}
    return {
        (LATTICE.lr(octaves[name] * OCTAVE), 0): TrialOutcome(end, 0.0)
        if 1 < end < math.inf
        else TrialOutcome(math.nan, end)
        for name, end in ends.items()
    }


@pytest.mark.parametrize(
    ("seen", "octaves"),
    [
        # a parabola of the curvature .2 through (0, ln 100) and (1, ln 60) is lowest at 3.2, to which a stride of two
        # octaves does not lead, through (2, ln 60) at 2.3, (2, ln 51) at 2.8, and (3, ln 60) at 2.4
        ({"z": 100, "p1": 60}, [3]),
        ({"z": 100, "p2": 60}, [3]),
        ({"z": 100, "p2": 51}, [4]),
        ({"z": 100, "p3": 60}, [4]),
        # what may be noise
        ({"z": 100, "p1": 80}, [2]),
        ({"z": 100, "p1": 97}, [2]),
        # two octaves apart, ln 80 puts it at -.2
        ({"m2": 100, "z": 80}, [1]),
        # as steep as 1/lr it may be any distance away
        ({"m4": 1200, "z": 100}, [8]),
        # below one that diverged it is near, and within a wide gap it is looked for there
        ({"z": 100, "p1": math.inf}, [-2]),
        ({"z": 100, "p2": math.inf}, [-2]),
        ({"z": 100, "p4": math.inf}, [2]),
        # above one that missed the target it is near as well, and a factor of 2 below is enough
        ({"m4": 0.5, "z": 100}, [4]),
        ({"m8": 0.5, "z": 100}, [4]),
        ({"m1": 0.5, "z": 100}, [2]),
        ({"m4": 0.5, "z": 100, "p1": 110}, [-1]),
        ({"m4": 130, "z": 100, "p1": 110}, [-2]),
    ],
)
def test_the_next_learning_rate_lies_a_little_beyond_where_the_last_two_put_the_best(
    seen: dict[str, float], octaves: list[int]
) -> None:
    asks = needed(outcomes(**seen), [0], LATTICE, Rules(prune_factor=None))
    assert [round(LATTICE.position(ask.lr) / OCTAVE, 3) for ask in asks] == octaves


@pytest.mark.parametrize(
    ("seen", "octaves"),
    [
        ({"z": 100, "p1": math.inf}, -1),
        ({"z": 100, "p2": math.inf}, 1),
        ({"m1": 0.5, "z": 100}, 1),
        ({"m4": 0.5, "z": 100}, 1),
        ({"z": math.inf, "p1": math.inf}, -1),
        ({"m1": math.inf, "z": math.inf, "p1": math.inf}, -2),
        # what two that reached the target say is said of this batch size
        ({"z": 100, "p1": 60}, 3),
    ],
)
def test_where_other_batch_sizes_have_told_where_to_begin_the_next_learning_rate_is_near(
    seen: dict[str, float], octaves: int
) -> None:
    rules = Rules(prune_factor=None, expected=Expected(math.log(4e-3), 0.6))
    (ask,) = needed(outcomes(**seen), [0], LATTICE, rules)
    assert LATTICE.position(ask.lr) == octaves * OCTAVE


def test_the_first_stride_is_long_where_nothing_reached_the_target_in_its_whole_budget() -> None:
    for far, near, octaves in ((0.9, 0.8, 1 + 4), (0.8, 0.9, -4)):
        seen = {(LATTICE.lr(o * OCTAVE), 0): TrialOutcome(math.nan, end) for o, end in ((0, far), (1, near))}
        (ask,) = needed(seen, [0], LATTICE, RULES)
        assert LATTICE.position(ask.lr) == octaves * OCTAVE


@pytest.mark.parametrize(("below", "distance", "finer"), [(120, 0.1, False), (120, math.inf, True), (125, 0.1, True)])
def test_one_seed_makes_a_learning_rate_finer_beside_a_cliff_and_not_beside_a_slow_one(
    below: float, distance: float, finer: bool
) -> None:
    seen = reached(m1=below, z=100) | {(LATTICE.lr(OCTAVE), 0): TrialOutcome(math.nan, distance)}
    asks = needed(seen, (0, 1, 2), LATTICE, RULES)
    assert [ask.seed for ask in asks] == ([0] if finer else [1, 2])


def told(place: float, deviation: float) -> Rules:
    return replace(RULES, expected=Expected(math.log(place), deviation), believes=True)


def test_other_batch_sizes_are_believed_where_they_are_sure_enough_for_so_many_seeds() -> None:
    """.2 times the squared distance in ln lr may be as much as the noise of the mean, .05 of one seed."""
    alone = reached(z=278)
    assert needed(alone, [0], LATTICE, told(4e-3, 0.45)) == []
    assert [(ask.lr, ask.seed) for ask in needed(alone, [0, 1], LATTICE, told(4e-3, 0.4))] == [(4e-3, 1)]
    for seeds, rules in (([0], told(4e-3, 0.6)), (range(4), told(4e-3, 0.45)), ([0], told(7e-3, 0.4))):
        assert {ask.seed for ask in needed(alone, seeds, LATTICE, rules)} == {0}
        assert all(ask.lr != 4e-3 for ask in needed(alone, seeds, LATTICE, rules))
    # a grid asks for worse ones on both sides, whatever others say
    both = needed(alone, [0], LATTICE, replace(told(4e-3, 0.1), believes=False))
    assert sorted(ask.lr for ask in both) == [2e-3, 8e-3]


@pytest.mark.parametrize(("place", "asked"), [(4.1e-3, 8e-3), (3.9e-3, 2e-3)])
def test_of_a_single_learning_rate_the_likelier_side_is_tried_alone(place: float, asked: float) -> None:
    assert [ask.lr for ask in needed(reached(z=278), [0], LATTICE, told(place, 0.7))] == [asked]


def test_two_learning_rates_say_with_the_others_where_the_best_one_lies() -> None:
    """A factor of 2 higher it takes 7 % more steps: the best lies .1 below their middle, in ln lr, give or take .26."""
    pair = reached(z=278, p1=round(278 * 1.07))
    table = TrialTable(pair, [0], LATTICE, RULES.prune_factor)
    found = two_rates(table)
    apart, rise = math.log(2), math.log(round(278 * 1.07) / 278)
    away = rise / (2 * CURVATURE * apart)
    assert found.log_lr == pytest.approx(math.log(4e-3 * math.sqrt(2)) - away)
    assert found.deviation == pytest.approx(math.hypot(0.05 / math.sqrt(2) / CURVATURE / apart, away / 2))
    assert optimum(pair, [0], LATTICE, RULES) == pytest.approx((found.log_lr, found.deviation**2))
    assert two_rates(TrialTable(reached(z=278), [0], LATTICE, None)) is None
    # neither is sure enough for sixteen seeds, both together are
    for expected_there, deviation, enough in ((4e-3, 0.3, True), (4e-3, 2.0, False), (8e-3, 0.2, False)):
        asks = needed(pair, range(16), LATTICE, told(expected_there, deviation))
        assert all(ask.lr == 4e-3 for ask in asks) == enough


def test_a_winner_between_two_that_missed_could_gain_what_the_least_curvature_implies() -> None:
    """A quarter of ln of the pruning factor, by which both took longer at least."""
    missed = possible_gains(math.inf, math.inf, 1.0, 1.0, beyond=False, prune_factor=4.0)
    assert missed == (math.log(4.0) / 4, math.log(4.0) / 4)
    assert possible_gains(math.inf, math.inf, 1.0, 1.0, beyond=False, prune_factor=None)[0] == math.log(2.0) / 4
