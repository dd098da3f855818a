"""Two equations, two unknowns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbs.noise_scale.moments import solve_moments

positive = st.floats(1e-3, 1e3)


@given(grad_sq_norm=positive, noise_trace=positive, small=st.integers(1, 100), ratio=st.integers(2, 50))
def test_solve_moments_inverts_the_expectations(
    grad_sq_norm: float, noise_trace: float, small: int, ratio: int
) -> None:
    big = small * ratio
    at_small = torch.tensor(grad_sq_norm + noise_trace / small, dtype=torch.float64)
    at_big = torch.tensor(grad_sq_norm + noise_trace / big, dtype=torch.float64)
    found = solve_moments(at_small, small, at_big, big)
    scale = grad_sq_norm + noise_trace
    assert found[0].item() == pytest.approx(grad_sq_norm, abs=1e-9 * scale)
    assert found[1].item() == pytest.approx(noise_trace, abs=1e-9 * scale * big)


def test_equal_sizes_say_nothing() -> None:
    signal, noise = solve_moments(torch.ones(3), 8, torch.ones(3), 8)
    assert signal.isnan().all()
    assert noise.isnan().all()
