"""What a batch size that follows the noise scale can save."""

import numpy as np
import pytest

from tests.references.adaptive_batch import best_gamma, steps_and_examples

PROGRESS = np.linspace(0.0, 1.0, 20_001) ** 2 * 400.0


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_gamma_of_a_noise_scale_that_grows_as_a_power(power: float) -> None:
    # SVHN in appendix D: 10 sqrt(s) gives 24/25
    gamma = best_gamma(PROGRESS, 10.0 * PROGRESS**power)
    assert gamma == pytest.approx((1 + power) / (1 + power / 2) ** 2, rel=1e-4)
    if power == 0.5:
        assert gamma == pytest.approx(24 / 25, rel=1e-4)


@pytest.mark.parametrize("price", [0.5, 30.0, 4000.0])
def test_the_rule_has_that_gamma_at_every_price_and_every_constant_batch_size_has_1(price: float) -> None:
    noise = 10.0 * np.sqrt(PROGRESS) + 1e-9
    fewest, cheapest = PROGRESS[-1], np.trapezoid(noise, PROGRESS)

    def gamma(batch_size: np.ndarray) -> float:
        steps, examples = steps_and_examples(PROGRESS, noise, batch_size)
        return float((steps / fewest - 1) * (examples / cheapest - 1))

    assert gamma(np.sqrt(price * noise)) == pytest.approx(0.96, rel=1e-3)
    assert gamma(np.full_like(noise, price)) == pytest.approx(1.0, rel=1e-9)
    # no other power of the noise scale does better
    assert all(gamma(noise**other) > 0.96 for other in (0.3, 0.7, 1.0))
