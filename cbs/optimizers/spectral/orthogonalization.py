"""The polar factor of matrices, by Newton-Schulz iteration or by singular value decomposition.

A matrix with singular value decomposition G = U S V^T has the polar factor U V^T: the matrix with the singular vectors
of G and all singular values 1. It is the steepest-descent direction of the spectral norm (Bernstein & Newhouse 2024,
arXiv 2409.20325). U and V hold only the singular vectors whose value is not 0, so the factor of a zero matrix is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.compute.device import FAST_BFLOAT16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al. 2024: steep at 0, and within a third of 1 elsewhere, without converging to 1."""

METHODS = ("newton_schulz", "svd")
DTYPES = ("auto", "float32", "bfloat16")

NORM_FLOOR = 1e-7

SMALL = 2**14
"""Matrices of up to this many entries are iterated together, because their cost is dispatch, not arithmetic."""


def orthogonalize(
    matrices: Sequence[Tensor],
    *,
    method: str = "newton_schulz",
    steps: int = 5,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    dtype: str = "float32",
) -> list[Tensor]:
    """Return an approximate or exact polar factor of each of ``matrices``, which are not changed.

    Args:
        matrices: ``[m, n]``, or a stack of them ``[count, m, n]``, of any shapes, none empty.
        method: ``"newton_schulz"`` or ``"svd"``.
        steps: Newton-Schulz steps.
        coefficients: Newton-Schulz coefficients, see :func:`newton_schulz`.
        dtype: ``"bfloat16"`` to iterate in bfloat16, as on accelerators; ``"float32"`` to keep each matrix's own dtype,
            or float32 if that is of lower precision. See :func:`fast_dtype`.

    Returns:
        One tensor for each matrix, in the type of the computation.
    """
    working = [matrix if matrix.dtype is torch.float64 else matrix.float() for matrix in matrices]
    if method == "svd":
        return [polar_factor(matrix) for matrix in working]
    if dtype == "bfloat16":
        return [newton_schulz(matrix.bfloat16(), steps, coefficients) for matrix in working]
    factors = list(working)
    for positions in _batches(working):
        if len(positions) == 1:
            factors[positions[0]] = newton_schulz(working[positions[0]], steps, coefficients)
            continue
        stacked = torch.stack([_wide(working[position]) for position in positions])
        for position, factor in zip(positions, newton_schulz(stacked, steps, coefficients).unbind(), strict=True):
            factors[position] = factor.mT if _is_tall(working[position]) else factor
    return factors


def fast_dtype(matrices: Sequence[Tensor]) -> str:
    """Return ``"bfloat16"`` where the iteration of such matrices is faster in it than in float32, else ``"float32"``.

    It is faster on accelerators, and for large matrices on CPUs with AMX (three times, from 256 x 256 on) and on AMD
    CPUs with AVX512-BF16 (twice). On others it is slower: 1.5 times with AVX512-BF16, 5 times with AVX512, 50 times
    with AVX2. The CPU's reported features decide, not a timing, so all trials of a sweep on machines of one kind use
    the same dtype. float64 is kept.
    """
    if any(matrix.dtype is torch.float64 for matrix in matrices):
        return "float32"
    if all(matrix.device.type != "cpu" for matrix in matrices):
        return "bfloat16"
    return "bfloat16" if FAST_BFLOAT16 and max(matrix.numel() for matrix in matrices) > SMALL else "float32"


def newton_schulz(matrices: Tensor, steps: int = 5, coefficients: tuple[float, float, float] = COEFFICIENTS) -> Tensor:
    """Iterate the quintic Newton-Schulz map, ``X <- a X + b (X X^T) X + c (X X^T)^2 X``, from ``X = G / |G|_F``.

    Each step maps every singular value s to ``a s + b s^3 + c s^5`` and keeps the singular vectors, so a value that is
    0 stays 0. A matrix with Frobenius norm below 1e-7 is divided by 1e-7 instead.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the same operations in the same order as
    ``torch.optim.Muon``.

    Args:
        matrices: ``[m, n]`` or ``[batch, m, n]``.
        steps: how often the map is applied.
        coefficients: a, b and c.

    Returns:
        A tensor of the same shape and type.
    """
    a, b, c = coefficients
    tall = _is_tall(matrices)
    x = matrices.mT if tall else matrices
    multiply_add = torch.addmm if x.ndim == 2 else torch.baddbmm
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=NORM_FLOOR)
    for _ in range(steps):
        gram = x @ x.mT
        x = multiply_add(x, multiply_add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def polar_factor(matrix: Tensor) -> Tensor:
    """Return the exact polar factor of ``[m, n]`` or ``[count, m, n]``, by singular value decomposition.

    Singular values below the rounding error of the largest, ``max(m, n) eps s_max``, count as 0. A matrix with an entry
    that is not finite gives NaN.
    """
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    left, values, right = torch.linalg.svd(matrix.where(finite, 0.0), full_matrices=False)
    threshold = values[..., :1] * max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    return ((left * (values > threshold)[..., None, :]) @ right).where(finite, torch.nan)


def _batches(matrices: Sequence[Tensor]) -> list[list[int]]:
    """Return positions of matrices to iterate together: small ones of one shape up to transposition; all others
    alone.
    """
    members: dict[tuple[Any, ...], list[int]] = {}
    for position, matrix in enumerate(matrices):
        alone = position if matrix.numel() > SMALL or matrix.ndim > 2 else None
        members.setdefault((min(matrix.shape), max(matrix.shape), matrix.dtype, matrix.device, alone), []).append(
            position
        )
    return list(members.values())


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[-2] > matrix.shape[-1]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if _is_tall(matrix) else matrix
