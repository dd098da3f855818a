"""The correction of a phase's estimate for the batch size."""

from dataclasses import replace

import pytest

from cbs.noise_scale.averages import Estimate
from extensions.noise_scale.phases import corrected_estimate as corrected

SIMPLE = Estimate(
    value=40.0, low=30.0, high=60.0, confidence=0.95, signal=1.0, noise=40.0, steps=100, examples=6400, note=""
)
L1 = replace(SIMPLE, value=50.0, low=45.0, high=56.0)


def test_the_value_is_that_of_the_rule() -> None:
    found = corrected(L1, SIMPLE, 64)
    assert found.value == pytest.approx(50.0 * (1 + 40.0 / 64))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    # no narrower than either part alone
    assert found.value / found.low >= 50 / 45
    assert found.high / found.value >= (1 + 60 / 64) / (1 + 40 / 64)


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
