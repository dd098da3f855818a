"""Lanczos against the dense eigendecomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cbs.spectrum.lanczos import Product, lanczos, outside, without

SIZE = 14


def matrix(seed: int = 0) -> Tensor:
    """Symmetric, with eigenvalues of both signs over three decades."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))
    values = torch.logspace(-2, 1, SIZE, dtype=torch.float64)
    values[3] *= -1
    return basis @ torch.diag(values) @ basis.T


def product(of: Tensor) -> Product:
    return lambda vector: of @ vector


def vectors(seed: int = 1) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(2, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def moment(of: Tensor, power: int, left: Tensor, right: Tensor) -> float:
    return float(left @ torch.linalg.matrix_power(of, power) @ right)


def test_all_steps_find_every_eigenvalue_and_every_projection() -> None:
    whole, (start, other) = matrix(), vectors()
    found = lanczos(product(whole), start, SIZE)
    values, basis = np.linalg.eigh(whole.numpy())
    # the quadrature forgets nothing: 1e-8 is what is left of 16 digits over three decades
    np.testing.assert_allclose(found.points, values, rtol=1e-8)
    np.testing.assert_allclose(found.weights(), (basis.T @ start.numpy()) ** 2, rtol=1e-6)
    np.testing.assert_allclose(found.weights(other), (basis.T @ start.numpy()) * (basis.T @ other.numpy()), rtol=1e-6)
    assert found.residuals.max() < 1e-8
    settled, ritz = found.settled(0.01)
    assert len(settled) == SIZE
    torch.testing.assert_close(whole @ ritz.T, ritz.T * torch.from_numpy(settled))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_few_steps_are_exact_as_far_as_a_quadrature_can_be(steps: int) -> None:
    whole, (start, other) = matrix(), vectors()
    found = lanczos(product(whole), start, steps)
    assert len(found.points) == steps
    for power in range(2 * steps):
        expected = moment(whole, power, start, start)
        np.testing.assert_allclose(found.weights() @ found.points**power, expected, rtol=1e-9)
    for power in range(steps):
        np.testing.assert_allclose(
            found.weights(other) @ found.points**power, moment(whole, power, start, other), rtol=1e-9
        )
    beyond = found.weights() @ found.points ** (2 * steps)
    assert abs(beyond / moment(whole, 2 * steps, start, start) - 1) > 1e-6


def test_residuals_are_those_of_the_ritz_vectors() -> None:
    whole, (start, _) = matrix(), vectors()
    found = lanczos(product(whole), start, 6)
    ritz = torch.from_numpy(found.coefficients.T.copy()) @ found.basis
    lengths = (whole @ ritz.T - ritz.T * torch.from_numpy(found.points)).norm(dim=0)
    np.testing.assert_allclose(found.residuals, lengths.numpy(), rtol=1e-6)
    few, _ = found.settled(0.1)
    assert few.tolist() == found.points[found.residuals <= 0.1 * abs(found.points)].tolist()
    assert 0 < len(few) < 6


def test_fewer_points_where_fewer_hold_everything() -> None:
    double = torch.diag(torch.tensor([2.0, 2.0, 2.0, 5.0, 0.0], dtype=torch.float64))
    found = lanczos(product(double), torch.ones(5, dtype=torch.float64), 5)
    np.testing.assert_allclose(found.points, [0.0, 2.0, 5.0], atol=1e-12)
    np.testing.assert_allclose(found.weights(), [1.0, 3.0, 1.0], rtol=1e-12)


def test_one_dimension_and_no_vector_at_all() -> None:
    one = lanczos(product(torch.full((1, 1), 3.0, dtype=torch.float64)), torch.full((1,), 2.0), 8)
    assert (one.points.tolist(), one.weights().tolist()) == ([3.0], [4.0])
    none = lanczos(product(matrix()), torch.zeros(SIZE), 8)
    assert (none.points.tolist(), none.weights().tolist()) == ([0.0], [0.0])


@pytest.mark.parametrize("deflated", [False, True])
def test_random_signs_give_unbiased_moments_of_the_density(deflated: bool) -> None:
    whole, (start, _) = matrix(), vectors()
    values, known = lanczos(product(whole), start, 8).settled(0.05)
    if not deflated:
        values, known = values[:0], known[:0]
    assert bool(len(values)) == deflated
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(150):
        signs = torch.randint(0, 2, (SIZE,), generator=generator).double().mul_(2).sub_(1)
        density = lanczos(without(product(whole), known), outside(signs, known), 4)
        points = np.concatenate([values, density.points])
        weights = np.concatenate([np.ones(len(values)), density.weights()])
        found.append([weights.sum(), weights @ points, weights @ points**2])
    truth = [SIZE, float(whole.trace()), float((whole @ whole).trace())]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / len(found) ** 0.5
    # within four standard errors, and a settled vector is an eigenvector to the square of 0.05
    assert (abs(mean - truth) < 4 * error + 0.0025 * np.abs(truth)).all()
    assert (error[2] < 0.02 * truth[2]) == deflated
