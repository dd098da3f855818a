"""What the tests of LAMB, LARS and MERIT share: shapes, starts, gradients and a run beside the twins."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SHAPES = [(5, 3), (3, 5), (5, 3), (1, 4), (4, 1), (6,), (6,), (1,), (), (4, 3, 2), (3, 2, 2, 3), (4, 3, 2), (5, 3)]
STEPS = 8


def starts(seed: int) -> list[np.ndarray]:
    """One start for each shape, some with zero rows, zero columns, or nothing but zeros, one with entries above 1."""
    draw = np.random.default_rng(seed)
    arrays = [np.asarray(draw.normal(size=shape) * 0.3) for shape in SHAPES]
    arrays[0][2] = 0.0
    arrays[1][:, 1] = 0.0
    arrays[2][:] = 0.0
    arrays[6][:] = 0.0
    arrays[9][1, :, 0] = 0.0
    arrays[12][1] *= 20.0
    return arrays


@lru_cache
def gradients(seed: int, step: int) -> list[np.ndarray]:
    """Gradients of widely different sizes; a row, a column, a slice and a whole vector are always 0."""
    draw = np.random.default_rng([seed, step])
    arrays = [np.asarray(draw.normal(size=shape) * 10.0 ** draw.integers(-4, 1)) for shape in SHAPES]
    arrays[0][0] = 0.0
    arrays[1][:, 3] = 0.0
    arrays[5][:] = 0.0
    arrays[10][:, 1, 0, 2] = 0.0
    return arrays


def beside_twin(
    optimizer_class: Any, twin_class: Any, dtype: torch.dtype, options: dict[str, Any], **ours: Any
) -> tuple[list[Tensor], list[np.ndarray]]:
    """Parameters and twins after the same steps; ``ours`` are options that must not change the result."""
    return run(optimizer_class, dtype, **options, **ours), _twins(twin_class, tuple(sorted(options.items())))


def run(optimizer_class: Any, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """The parameters after all steps."""
    params = [nn.Parameter(torch.tensor(start, dtype=dtype)) for start in starts(1)]
    optimizer = optimizer_class(params, **options)
    for step in range(STEPS):
        for param, gradient in zip(params, gradients(2, step), strict=True):
            param.grad = torch.tensor(gradient, dtype=dtype)
        optimizer.step()
    return [param.detach() for param in params]


@lru_cache
def _twins(twin_class: Any, options: tuple[tuple[str, Any], ...]) -> list[np.ndarray]:
    twins = [twin_class(start, **dict(options)) for start in starts(1)]
    for step in range(STEPS):
        for twin, gradient in zip(twins, gradients(2, step), strict=True):
            twin.step(gradient)
    return [twin.w for twin in twins]


def assert_agrees(fast: list[Tensor], slow: list[np.ndarray], rtol: float, atol: float) -> None:
    for param, twin in zip(fast, slow, strict=True):
        np.testing.assert_allclose(param.numpy(), twin, rtol=rtol, atol=atol)
