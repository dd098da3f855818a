"""Products of estimates, and the correction for the batch size."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cbs.noise_scale.averages import Estimate
from cbs.noise_scale.interval import correction, product_ends
from cbs.training.noise_scale_run import corrected_estimate as corrected

SIMPLE = Estimate(
    value=40.0, low=30.0, high=60.0, confidence=0.95, signal=1.0, noise=40.0, steps=100, examples=6400, note=""
)
L1 = replace(SIMPLE, value=50.0, low=45.0, high=56.0)


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


def test_the_value_is_that_of_the_rule() -> None:
    found = corrected(L1, SIMPLE, 64)
    assert found.value == pytest.approx(50.0 * (1 + 40.0 / 64))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    # no narrower than either part alone
    assert found.value / found.low >= 50 / 45
    assert found.high / found.value >= (1 + 60 / 64) / (1 + 40 / 64)


def test_correction_fades_with_the_batch_size() -> None:
    factors = [correction(30.0, (20.0, None), batch_size) for batch_size in (3.0, 30.0, 3e9)]
    assert [factor for factor, _ in factors] == pytest.approx([11.0, 2.0, 1.0])
    assert [ends for _, ends in factors][:1] == [(pytest.approx(1 + 20 / 3), None)]


def test_large_batches_need_no_correction() -> None:
    found = corrected(L1, SIMPLE, 1e9)
    assert (found.value, found.low, found.high) == pytest.approx((50.0, 45.0, 56.0))


def test_what_is_undefined_stays_undefined_and_says_why() -> None:
    nothing = replace(SIMPLE, value=None, low=None, high=None, note="the mean signal is not positive (-1)")
    found = corrected(L1, nothing, 64)
    assert found.value is None
    assert found.interval == (None, None)
    assert "not positive" in found.note
    assert corrected(nothing, SIMPLE, 64) == nothing
    assert corrected(L1, replace(SIMPLE, high=None), 64).high is None
    # an open lower end of the simple scale only says that the correction is at least 1
    assert corrected(L1, replace(SIMPLE, low=None), 64).low is not None
