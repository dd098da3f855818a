"""Two optimizers at one batch size, paired by their seeds; and the screen that shows them."""

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.objective import draw_losses, loss_studies
from extensions.budget.comparisons import pair
from extensions.budget.equal_budgets import budget
from tests import equal_budgets
from tests.analysis.estimate.test_objective import study
from tests.analysis.test_screens import FAST, holds

CONFIG = AnalysisConfig(resamples=400)


@pytest.mark.parametrize(("lucky", "widest"), [(0.95, 0.6), (0.0, 1.1)])
def test_two_optimizers_at_one_batch_size_are_paired_as_far_as_their_seeds_are_alike(
    lucky: float, widest: float
) -> None:
    """Of 60 sweeps of eight seeds, the intervals of the differences hold the truth in 54 or more, and where seeds help
    both optimizers alike they are narrower than those of strangers, which are about as wide as of a known noise."""
    held, widths = [], []
    for turn in range(60):
        level, own, other = np.random.default_rng([turn, 8]).standard_normal((3, 8))
        both = [math.sqrt(lucky) * level + math.sqrt(1 - lucky) * each for each in (own, other)]
        tables = [np.array([(2.0 + 0.1 * row)]) for row in both]
        first, second = (
            draw_losses(*loss_studies([study(table, np.ones(1))], [table]), CONFIG, name=name)
            for name, table in zip("ab", tables, strict=True)
        )
        (at,) = pair(("a", "b"), first, second, CONFIG).at
        low, high = at.interval
        held.append(low <= 0 <= high)
        widths.append((high - low) / (2 * 1.96 * 0.1 * math.sqrt(2 / 8)))
    assert sum(held) >= 54
    assert np.median(widths) < widest


def test_seeds_that_are_alike_say_nothing_of_learning_rates_that_were_missed() -> None:
    lrs = 4.0 ** np.arange(5)
    table = (0.1 * np.log(lrs / 8) ** 2)[:, None] + 0.001 * np.random.default_rng(0).standard_normal(8)
    both = [draw_losses(*loss_studies([study(table, lrs)], [table]), CONFIG, name=name) for name in "ab"]
    low, high = pair(("a", "b"), both[0], both[1], CONFIG).at[0].interval
    assert high - low > 0.7 * math.hypot(*(float(each.between[0]) for each in both)) > 0.01


def test_budgets_are_a_screen(tmp_path: Path) -> None:
    equal_budgets.write(tmp_path, {"adamw": equal_budgets.World(), "muon": equal_budgets.World()})
    holds(budget(tmp_path, config=FAST))


def test_many_budgets_are_a_screen_that_says_what_it_leaves_out(tmp_path: Path) -> None:
    names = ("adamw", "lamb", "lion", "merit", "muon", "sgd")
    equal_budgets.write(tmp_path, dict.fromkeys(names, equal_budgets.World()), rates=(0.25, 0.5))
    found = budget(tmp_path, config=FAST)
    holds(found)
    assert "--wide shows the rest: " in str(found)
    assert "a learning rate beyond those that were run may be better" in " ".join(str(found).split())
