"""The search of learning rates on laws whose best one is known, and what is said where it stops at the wrong one."""

import math
from dataclasses import replace

import pytest

from analysis.estimate.diagnosis import Verdict
from benchmarks import learning_rates
from benchmarks.learning_rates import FARTHER, FEWER, TwoOptima, missed, searched
from cbs.trial.config import TrialConfig
from sweeps.search.forecast import End
from tests.sweeps.search_worlds import World, found


def test_a_search_finds_the_best_learning_rates_for_less_than_a_grid() -> None:
    world = World(1.0, 0.5, 0.03, 0)
    search, trials, share = searched(world)
    inside, above = found(search, world)
    assert inside == len(search.studies) == 9
    assert max(above) < 0.05
    assert share < 0.5
    examples = sum(trial.config.batch_size * trial.final_step for trial in trials)
    grid = 3 * sum(math.exp(world.log_steps(size, world.best_lr(size) * 2.0**octave)) * size
                   for size in (4 * 2**power for power in range(9)) for octave in (-2, -1, 0, 1, 2))  # fmt: skip
    assert share == pytest.approx(examples / grid, rel=0.02)


def test_the_second_optimum_is_better_and_lies_behind_worse_learning_rates() -> None:
    world = TwoOptima(1.0, 0.0, 0.0, 0)
    config = searched(world)[1][0].config
    first = world.best_lr(config.batch_size)

    def steps(times: float) -> float:
        return world.end(replace(config, lr=first * times)).steps

    assert steps(FARTHER) == pytest.approx(FEWER * steps(1))
    between = [steps(FARTHER ** (place / 40)) for place in range(40)]
    assert max(between[:20]) == pytest.approx(steps(1) * math.exp(0.25 * (math.log(FARTHER) * 19 / 40) ** 2))
    assert between[21] == pytest.approx(FEWER * steps(1) * math.exp(0.25 * (math.log(FARTHER) * 19 / 40) ** 2))
    assert 2.5 < max(between) / steps(1) < 3
    assert all(world.end(replace(config, lr=first * FARTHER ** (place / 40))).reached for place in range(60))


def test_it_is_missed_and_the_verdict_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed([0, 1]) == [Verdict.OK, Verdict.OK]

    class Farther(TwoOptima):
        def end(self, config: TrialConfig) -> End:
            return World.end(self, replace(config, lr=config.lr / FARTHER))

    monkeypatch.setattr(learning_rates, "TwoOptima", Farther)
    assert missed([0]) == []
