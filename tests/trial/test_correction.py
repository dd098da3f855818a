"""Products of estimates, and the correction for the batch size."""

import math

import numpy as np
import pytest

from cbs.noise_scale.interval import correction, product_ends


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
