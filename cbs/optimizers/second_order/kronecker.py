r"""Kronecker-factored curvature of one weight: damping, and the product of the inverse with a gradient.

For a weight W, ``[rows, columns]``, a curvature block is a Kronecker product L x R of a factor of its rows and one of
its columns: it maps V to L V R. A factor is a symmetric matrix, or a vector that stands for a diagonal one.

Damping is that of Martens & Grosse 2015 (arXiv 1503.05671), section 6.3: L x R + lambda I is approximated by the
product of :math:`L + \pi \sqrt\lambda I` and :math:`R + \sqrt\lambda / \pi I`, where :math:`\pi^2` is the ratio of the
mean eigenvalues of L and R. A weight that is used in two ways, as a token embedding that is also the head, has a sum of
two products; its inverse is exact (appendix B there), with the damping in the second product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor]
"""Factor of the rows and factor of the columns; each a matrix or the vector of a diagonal."""


@dataclass(frozen=True)
class Inverse:
    """Inverse of a block: maps V to ``rows ((rows' V columns) / spectrum) columns'``.

    Attributes:
        rows: matrix, or vector of a diagonal one.
        columns: matrix, or vector of a diagonal one.
        spectrum: ``[rows, columns]``; ``None`` where the map is ``rows V columns``.
    """

    rows: Tensor
    columns: Tensor
    spectrum: Tensor | None = None

    def __call__(self, v: Tensor) -> Tensor:
        """Return the damped inverse times ``v``, shape ``[rows, columns]``."""
        if self.spectrum is None:
            return right(left(self.rows, v), self.columns)
        inner = right(left(transposed(self.rows), v), self.columns) / self.spectrum
        return right(left(self.rows, inner), transposed(self.columns))


def inverse_of_product(factors: Factors, damping: float) -> Inverse:
    """Return the inverse of one damped product."""
    rows, columns = damped(factors, damping)
    return Inverse(inverted(rows), inverted(columns))


def inverse_of_sum(first: Factors, second: Factors, damping: float) -> Inverse:
    r"""Return the inverse of L1 x R1 + L2 x R2, with damping in the second product.

    With :math:`K_L = L_2^{-1/2} E_L`, where :math:`E_L S_L E_L^\top = L_2^{-1/2} L_1 L_2^{-1/2}`, and the same for R,
    the sum is :math:`K_L^{-\top} K_L^{-1} \otimes K_R^{-\top} K_R^{-1}` with :math:`1 + s_L s_R^\top` between the
    halves.
    """
    (rows, row_spectrum), (columns, column_spectrum) = (
        relative(one, other) for one, other in zip(first, damped(second, damping), strict=True)
    )
    return Inverse(rows, columns, 1.0 + torch.outer(row_spectrum, column_spectrum))


def damped(factors: Factors, damping: float) -> Factors:
    """Return both factors with their share of the damping, split by the ratio of their mean eigenvalues."""
    rows, columns = factors
    sizes = mean_eigenvalue(rows), mean_eigenvalue(columns)
    balance = torch.where((sizes[0] > 0) & (sizes[1] > 0), (sizes[0] / sizes[1]).sqrt(), 1.0)
    root = damping**0.5
    return shifted(rows, balance * root), shifted(columns, root / balance)


def mean_eigenvalue(factor: Tensor) -> Tensor:
    """Return the trace over the dimension, a scalar."""
    return (factor if factor.ndim == 1 else factor.diagonal()).mean()


def shifted(factor: Tensor, amount: Tensor) -> Tensor:
    """Return the factor plus ``amount`` times the identity."""
    if factor.ndim == 1:
        return factor + amount
    result = factor.clone()
    result.diagonal().add_(amount)
    return result


def inverted(factor: Tensor) -> Tensor:
    """Return the inverse of a positive definite factor, computed in float64; NaN where the factor is not finite.

    Raises:
        RuntimeError: if it is singular.
    """
    if factor.ndim == 1:
        return factor.reciprocal()
    lower, failed = torch.linalg.cholesky_ex(factor.double())
    if int(failed):
        if not bool(factor.isfinite().all()):
            return torch.full_like(factor, torch.nan)
        raise RuntimeError("a factor of the curvature is numerically singular: raise damping")
    return torch.cholesky_inverse(lower).to(factor.dtype)


def relative(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return K and s with ``second^-1 = K K'`` and ``second^-1 first`` similar to diag(s).

    Computed in float64; NaN where a factor is not finite.
    """
    if first.ndim == second.ndim == 1:
        return second.rsqrt(), first / second
    if not bool(first.isfinite().all() and second.isfinite().all()):
        return torch.full_like(matrix(second), torch.nan), torch.full_like(second[0], torch.nan)
    values, vectors = torch.linalg.eigh(matrix(second).double())
    root = vectors * values.rsqrt()
    root = root @ vectors.T
    spectrum, basis = torch.linalg.eigh(root @ matrix(first).double() @ root)
    return (root @ basis).to(second.dtype), spectrum.to(second.dtype)


def matrix(factor: Tensor) -> Tensor:
    """Return the factor as a matrix."""
    return torch.diag(factor) if factor.ndim == 1 else factor


def left(factor: Tensor, v: Tensor) -> Tensor:
    """Return ``factor v``."""
    return factor[:, None] * v if factor.ndim == 1 else factor @ v


def right(v: Tensor, factor: Tensor) -> Tensor:
    """Return ``v factor``."""
    return v * factor if factor.ndim == 1 else v @ factor


def transposed(factor: Tensor) -> Tensor:
    """Return ``factor'``."""
    return factor if factor.ndim == 1 else factor.T
