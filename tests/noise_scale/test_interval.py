"""The interval of a ratio of means: equal to a slow twin, and it holds the truth as often as it says.

Coverage is measured on streams whose ratio is known: signal and noise fluctuate by a given coefficient of variation,
as AR(1) series, normal or heavy-tailed, together or apart, around means that may drift. With ``steps (1 - rho) /
(1 + rho)`` independent steps or more, at least 20, the 95 % interval holds the ratio in 93 to 97 % of 2000 streams.
Exceptions, measured and tested: a lognormal signal that fluctuates by three times its mean, over 50 steps, is too
skewed (92 %), and where means drift by a factor e over thousands of quiet steps the interval is too wide (above 97 %).
"""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from cbs.noise_scale.interval import Interval, ratio_interval, student_t
from tests.references import interval as slow

RATIO = 20.0


def ar1(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    """Stationary series of variance 1 along the last axis."""
    shocks = rng.standard_normal(shape)
    shocks[..., 1:] *= math.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], shocks, axis=-1)


def streams(
    rng: np.random.Generator,
    repeats: int,
    steps: int,
    rho: float,
    variation: float,
    *,
    together: float = 0.0,
    kind: str = "normal",
    drift: float = 0.0,
) -> tuple[np.ndarray, float]:
    """Signal and noise ``[2, repeats, steps]`` and the ratio of the means of their true values."""
    first, second = ar1(rng, (2, repeats, steps), rho)
    fluctuations = np.stack([first, together * first + math.sqrt(1 - together**2) * second])
    if kind == "lognormal":
        fluctuations = (np.exp(fluctuations) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    elif kind == "chi-square":
        fluctuations = (fluctuations**2 - 1) / math.sqrt(2)
    elif kind == "common scale":
        scale = np.exp(first - 0.5)
        fluctuations = scale * (1 + rng.standard_normal((2, repeats, steps))) - 1
    truth = np.stack(
        [np.exp(-drift * np.linspace(0, 1, steps)), RATIO * np.exp(0.5 * drift * np.linspace(0, 1, steps))]
    )
    size = np.array([variation, min(variation, 1.0)])
    signal, noise = truth[:, None] * (1 + size[:, None, None] * fluctuations)
    return np.stack([signal, noise]), truth[1].mean() / truth[0].mean()


def coverage(moments: np.ndarray, truth: float, **options: np.ndarray) -> tuple[float, float]:
    """Share of the given intervals that hold the truth, and share of the streams that get one."""
    found = [ratio_interval(*moments[:, index], **options) for index in range(moments.shape[1])]
    given = [interval for interval in found if not interval.note.startswith("no interval: only")]
    return sum(holds(interval, truth) for interval in given) / max(1, len(given)), len(given) / len(found)


def holds(interval: Interval, truth: float) -> bool:
    if interval.note.startswith("no interval"):
        return False
    return (interval.low is None or interval.low <= truth) and (interval.high is None or truth <= interval.high)


FAST = [
    {"rho": 0.0, "variation": 1.0},
    {"rho": 0.5, "variation": 10.0},
    {"rho": 0.8, "variation": 0.3, "together": 0.9},
    {"rho": 0.8, "variation": 1.0, "together": -0.9},
    {"rho": 0.5, "variation": 1.0, "kind": "lognormal"},
    {"rho": 0.5, "variation": 1.0, "kind": "common scale"},
    {"rho": 0.0, "variation": 1.0, "drift": 1.0},
]


@pytest.mark.parametrize("case", FAST, ids=str)
def test_coverage(case: dict) -> None:
    """500 streams of 200 steps: were the coverage 91 %, the chance of 460 hits would be 0.24, at 88 % 0.003; at 95 %
    the chance of fewer is 0.001."""
    rng = np.random.default_rng(0)
    covered, given = coverage(*streams(rng, 500, 200, **case))
    assert 0.92 <= covered <= 0.985
    assert given > 0.99


RHOS, LENGTHS = (0.0, 0.5, 0.9, 0.97), (50, 200, 1000, 5000)


def test_coverage_of_several_series_with_means_of_their_own() -> None:
    """Three series whose signals differ by 10 %: the ratio of the pooled true means; bounds as above."""
    rng = np.random.default_rng(2)
    moments, _ = streams(rng, 500, 180, 0.5, 1.0)
    levels = np.repeat([0.9, 1.0, 1.1], 60)
    moments[0] *= levels
    starts = np.arange(180) % 60 == 0
    covered, given = coverage(moments, RATIO, starts=starts)
    assert 0.92 <= covered <= 0.99
    assert given > 0.97


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_slow_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(16, 90))
    moments, _ = streams(rng, 1, count, (0.0, 0.6)[seed % 2], (0.5, 3.0)[seed % 2])
    steps = np.full(count, 4.0)
    steps[-1] = 3.0
    found = ratio_interval(*moments[:, 0], steps=steps, confidence=0.9)
    expected = slow.ratio_interval(*moments[:, 0], steps, 0.9)
    if expected is None:
        assert (found.low, found.high) == (None, None)
        return
    assert (found.low or 0.0) == pytest.approx(expected[0], rel=1e-8)
    assert (found.high or math.inf) == pytest.approx(expected[1], rel=1e-8)


def test_a_signal_that_may_be_zero_opens_the_upper_end() -> None:
    rng = np.random.default_rng(5)
    for mean in (0.02, -0.02):
        found = ratio_interval(mean + rng.standard_normal(400), 10 + rng.standard_normal(400))
        assert found.high is None
        assert found.low > 20


def test_a_noise_that_may_be_zero_opens_the_lower_end() -> None:
    rng = np.random.default_rng(6)
    found = ratio_interval(10 + rng.standard_normal(400), 0.02 + rng.standard_normal(400))
    assert found.low is None
    assert found.high < 0.1


def test_nothing_known_is_said() -> None:
    rng = np.random.default_rng(7)
    signal, noise = rng.standard_normal((2, 200))
    found = ratio_interval(signal - signal.mean() + 0.01, noise - noise.mean() + 0.01)
    assert (found.low, found.high) == (None, None)
    assert "neither 0 nor infinity" in found.note
    negative = ratio_interval(-5 + rng.standard_normal(200), 5 + rng.standard_normal(200))
    assert (negative.low, negative.high) == (None, None)
    assert "no positive value" in negative.note


def test_too_few_or_too_correlated_steps_get_no_interval() -> None:
    rng = np.random.default_rng(8)
    few = ratio_interval(*(1 + 0.1 * rng.standard_normal((2, 12))))
    assert (few.low, few.high, few.note) == (None, None, "too few steps for an interval")
    walk = ratio_interval(*(50 + np.cumsum(rng.standard_normal((2, 60)), axis=1)))
    assert (walk.low, walk.high) == (None, None)
    assert "effectively independent steps" in walk.note


@pytest.mark.parametrize("level", [0.01, 0.5, 0.683, 0.9, 0.95, 0.99, 0.999, 0.9999])
def test_student_t(level: float) -> None:
    """Roots of a polynomial, which flattens towards a level of 1."""
    assert student_t(level) == pytest.approx(stats.t.ppf(0.5 + level / 2, 8), rel=1e-9)


STREAMS = [
    *({"variation": variation} for variation in (0.3, 1.0, 3.0, 10.0)),
    *({"variation": 1.0, "together": together} for together in (0.9, -0.9)),
    *({"variation": 1.0, "kind": kind} for kind in ("lognormal", "chi-square", "common scale")),
    {"variation": 3.0, "kind": "lognormal"},
    {"variation": 1.0, "drift": 1.0},
    {"variation": 0.3, "drift": 1.0},
]
"""Each with every correlation of neighbours, and with every length."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "rho", "steps"),
    [(case, rho, LENGTHS[(row + column) % 4]) for row, case in enumerate(STREAMS) for column, rho in enumerate(RHOS)],
    ids=str,
)
def test_coverage_everywhere(steps: int, rho: float, case: dict) -> None:
    """2000 streams, standard error 0.5 %: 93 to 97 %, two standard errors allowed. Below 20 independent steps most
    streams get no interval, and at most 13 % get a wrong one (5 % would be nominal; measured up to 12 %)."""
    rng = np.random.default_rng(7)
    moments, truth = streams(rng, 2000, steps, rho, **case)
    length = max(1, 2 ** math.ceil(math.log2(steps / 256)))
    starts = np.arange(0, steps, length)
    sizes = np.diff(np.append(starts, steps)).astype(float)
    covered, given = coverage(np.add.reduceat(moments, starts, axis=2) / sizes, truth, steps=sizes)
    independent = steps * (1 - rho) / (1 + rho)
    if independent >= 20:
        skewed = case.get("kind") == "lognormal" and case["variation"] > 1 and steps == 50
        assert covered >= (0.91 if skewed else 0.92)
        assert covered <= 0.98 or "drift" in case
        assert given > 0.99
    else:
        assert given * (1 - covered) <= 0.13
        assert given < 0.3 or independent > 5 or "kind" in case


def test_exponent_two_squares_the_ends() -> None:
    moments, _ = streams(np.random.default_rng(4), 1, 120, 0.3, 1.0)
    plain, squared = (ratio_interval(*moments[:, 0], exponent=exponent) for exponent in (1, 2))
    assert (squared.low, squared.high) == (pytest.approx(plain.low**2), pytest.approx(plain.high**2))


def test_a_linear_drift_alone_leaves_no_doubt() -> None:
    time = np.linspace(0, 1, 64)
    found = ratio_interval(2.0 - time, 30.0 + 10 * time)
    assert found.low == pytest.approx(35 / 1.5, rel=1e-9)
    assert found.high == pytest.approx(35 / 1.5, rel=1e-9)


@pytest.mark.parametrize("exponent", [1, 2])
def test_what_does_not_scatter_is_known_exactly(exponent: int) -> None:
    found = ratio_interval(np.full(200, 2.0), np.full(200, 6.0), exponent=exponent)
    assert (found.low, found.high) == pytest.approx((3.0**exponent, 3.0**exponent))
