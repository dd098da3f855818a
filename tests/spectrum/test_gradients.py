"""Gradient and gradient noise against the gradients of single examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.spectrum.gradients import Sampler

EXAMPLES, SIZE = 600, 5
"""Fewer examples than twice the batches are divided into: 256 batches of 2, and 88 examples are left over."""


def table(spread: float = 1.0) -> Tensor:
    """A gradient per example, with unlike variances and a mean far from 0."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(EXAMPLES, SIZE, generator=generator, dtype=torch.float64)
    return 10.0 + spread * drawn * torch.tensor([3.0, 1.0, 0.3, 0.1, 0.0])


class Rows:
    def __init__(self, rows: Tensor) -> None:
        self.rows, self.at = rows, 0

    def next(self, examples: int) -> Tensor:
        self.at += examples
        return self.rows[self.at - examples : self.at]


def sampler(rows: Tensor, examples: int = EXAMPLES) -> Sampler:
    return Sampler(lambda batch: (float(batch.sum()), batch.mean(0)), lambda: Rows(rows), examples)


def test_halves_are_means_of_different_examples() -> None:
    rows = table()[:512]
    halves, loss = sampler(rows, 512).halves()
    pairs = rows.view(128, 2, 2, SIZE)
    torch.testing.assert_close(halves, pairs.mean((0, 2)))
    assert loss == pytest.approx(float(rows.sum()) / 256)


def test_an_example_each_gives_the_covariance_of_examples() -> None:
    rows = table()[:256]
    basis, _ = torch.linalg.qr(torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    variances, drawn = sampler(rows, 256).noise(basis.T, 400, torch.Generator().manual_seed(0))
    covariance = torch.cov(rows.T)
    np.testing.assert_allclose(variances, np.diag(basis.T @ covariance @ basis), rtol=1e-10)
    squares = (drawn**2).numpy()
    error = squares.std(axis=0, ddof=1) / len(squares) ** 0.5
    assert (abs(squares.mean(axis=0) - np.diag(covariance)) <= 4 * error + 1e-12).all()
    assert abs(drawn.mean(0)).max() < 4 * 3.0 / 400**0.5


def test_batches_are_scaled_to_one_example() -> None:
    found = sampler(table())
    assert (found.batches, found.size) == (256, 2)
    units = torch.eye(SIZE, dtype=torch.float64)
    variances, drawn = found.noise(units, 300, torch.Generator().manual_seed(0))
    truth = np.array([9.0, 1.0, 0.09, 0.01, 0.0])
    # a variance of 256 numbers is off by sqrt(2/255), 9 %, one of 300 vectors by 8 % more
    np.testing.assert_allclose(variances, truth, rtol=0.36, atol=1e-12)
    np.testing.assert_allclose((drawn**2).mean(0).numpy(), variances, rtol=0.33, atol=1e-12)


def test_gradients_that_are_all_alike_have_no_noise() -> None:
    variances, drawn = sampler(table(spread=0.0)).noise(torch.eye(SIZE).double(), 2, torch.Generator().manual_seed(0))
    assert abs(variances).max() < 1e-20
    assert abs(drawn).max() < 1e-10


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match="gradient examples must be at least 8, got 7"):
        sampler(table(), 7)
