"""The two-batch estimator: unbiased at a fixed point, exact as algebra, undefined for a single example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbs import seeding
from cbs.config import Choice
from cbs.noise_scale.two_batch import TwoBatch, solve_moments
from cbs.workloads import build_workload


def observe(probe: TwoBatch, examples: torch.Tensor, sizes: list[int]) -> dict[str, float]:
    """One step on per-example gradients of shape ``[examples, parameters]``, split over two parameter tensors."""
    for part in examples.split(sizes):
        probe.micro_batch(part.mean(0).tensor_split(2), len(part))
    values = probe.step(examples.mean(0).tensor_split(2), len(examples))
    return dict(zip(probe.columns, (value.item() for value in values), strict=True))


@pytest.mark.parametrize("noise", [0.05, 1.0, 50.0])
@pytest.mark.parametrize("sizes", [[1, 1], [8, 8], [5, 4], [3, 3, 2, 2], [1, 7]])
def test_moments_are_unbiased_at_a_fixed_point(sizes: list[int], noise: float) -> None:
    workload = build_workload(Choice(name="noisy_quadratic", options={"dimension": 50, "noise": noise}))
    with seeding.seeded(0, "init"):
        model = workload.build_model()
    truth = np.array(workload.true_moments(model))
    stream = workload.training_stream(seeding.generator(0, "data"))
    gradient = model.curvature * model.theta.detach()
    probe = TwoBatch()
    rows = [observe(probe, gradient + stream.next(sum(sizes)), sizes) for _ in range(800)]
    measured = np.array([(row["grad_sq_norm"], row["noise_trace"]) for row in rows])
    error = measured.std(axis=0, ddof=1) / np.sqrt(len(measured))
    assert (np.abs(measured.mean(axis=0) - truth) < 4 * error).all()


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


def test_columns_are_the_norms_they_say() -> None:
    examples = torch.randn(7, 10, generator=seeding.generator(0, "test"))
    row = observe(TwoBatch(), examples, [4, 3])
    parts = [part.mean(0).square().sum().item() for part in examples.split([4, 3])]
    assert row["small_batch_size"] == pytest.approx(2 / (1 / 4 + 1 / 3))
    assert row["small_grad_sq_norm"] == pytest.approx(sum(parts) / 2, rel=1e-5)
    assert row["big_grad_sq_norm"] == pytest.approx(examples.mean(0).square().sum().item(), rel=1e-5)


def test_equal_examples_have_no_noise() -> None:
    row = observe(TwoBatch(), torch.full((6, 4), 0.5), [3, 3])
    assert row["grad_sq_norm"] == pytest.approx(1.0)
    assert row["noise_trace"] == pytest.approx(0.0, abs=1e-6)


def test_a_single_micro_batch_has_no_moments() -> None:
    row = observe(TwoBatch(), torch.ones(1, 4), [1])
    assert row["big_grad_sq_norm"] == pytest.approx(4.0)
    assert all(math.isnan(row[name]) for name in TwoBatch.columns if name != "big_grad_sq_norm")


def test_a_step_forgets_the_one_before() -> None:
    examples = torch.randn(6, 4, generator=seeding.generator(1, "test"))
    probe = TwoBatch()
    first = observe(probe, examples, [2, 4])
    observe(probe, 3 * examples, [3, 3])
    assert observe(probe, examples, [2, 4]) == first
