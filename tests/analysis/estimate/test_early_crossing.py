"""How early noisy evaluations pass a target, held against curves whose trend is known."""

import math

import numpy as np
import pytest

from analysis.estimate.early_crossing import early_crossing
from cbs.trial.target import Target

STEPS, BUDGET = 800.0, 4000
TARGET = Target(metric="loss", value=3.0)


def curve(steps: np.ndarray) -> np.ndarray:
    """A power law that passes the target at :data:`STEPS`."""
    return 2.0 + (steps / STEPS) ** -0.3


def leads(steps: np.ndarray, noise: float, *, stopped: bool) -> tuple[np.ndarray, np.ndarray]:
    """By how much 200 noisy curves pass the target too early, and what is expected of each."""
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        values = curve(steps) + rng.normal(0, noise, len(steps))
        crossing = TARGET.crossing(steps, values)
        assert crossing is not None
        seen = np.searchsorted(steps, crossing) + 1 if stopped else len(steps)
        found.append((math.log(STEPS / crossing), early_crossing(steps[:seen], values[:seen], crossing)))
    true, expected = np.array(found).T
    return true, expected


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("every", [0, 10], ids=["geometric", "every 10"])
def test_what_is_expected_is_what_happens(every: int, noise: float) -> None:
    steps = np.arange(10, BUDGET, 10.0) if every else np.unique(np.round(1.04 ** np.arange(1, 212)))
    true, expected = leads(steps, noise, stopped=False)
    assert expected.mean() == pytest.approx(true.mean(), rel=0.25, abs=0.01)
    true, expected = leads(steps, noise, stopped=True)
    assert 0.55 * true.mean() - 0.01 < expected.mean() < 1.1 * true.mean() + 0.01


@pytest.mark.parametrize("growth", [1.01, 1.04, 1.1])
def test_a_smooth_curve_passes_its_target_when_it_does(growth: float) -> None:
    steps = growth ** np.arange(1, int(math.log(BUDGET) / math.log(growth)))
    assert early_crossing(steps, curve(steps), STEPS) == 0
    cliff = 3.0 + 1 / (1 + (steps / STEPS) ** 12) - 0.5
    assert early_crossing(steps, cliff, STEPS) == 0


def test_few_evaluations_tell_nothing_and_no_trend_tells_the_most() -> None:
    steps, rng = np.arange(400.0, 1600, 20), np.random.default_rng(0)
    flat = 3.0 + rng.normal(0, 0.1, len(steps))
    assert early_crossing(steps, flat, STEPS) == pytest.approx(math.log(2))
    assert early_crossing(steps, np.full(len(steps), 3.0), STEPS) == 0
    assert early_crossing(steps[17:24], flat[17:24], STEPS) == 0
