r"""Where a vector lies along the eigenvalues of a symmetric matrix that is known by its products alone.

Of a matrix with eigenpairs :math:`(\lambda_i, q_i)` a vector v has the spectral measure that puts
:math:`(q_i^\top v)^2` on :math:`\lambda_i`; its integral of f is :math:`v^\top f(A) v`. K steps of Lanczos give the
K-point Gauss quadrature of this measure (Golub & Meurant 2010, "Matrices, Moments and Quadrature", chapter 6): exact
for polynomials of degree 2K - 1, from one product a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""A vector ``[d]`` -> the matrix times it, ``[d]``, both in float64."""

ENDED = 1e-6
"""The vectors found span all that the products reach once what is new of one is this part of the matrix: what products
in single precision leave of nothing."""

ROUNDING = 1e-12
"""What is left of a vector, as a part of it, where double precision leaves nothing."""


@dataclass(frozen=True)
class Lanczos:
    """Result of some Lanczos steps from a vector.

    Attributes:
        points: Ritz values, increasing, ``[K]``.
        residuals: length of ``A y - point y`` of every Ritz vector y, ``[K]``.
        coefficients: of every Ritz vector in the basis, a column each, ``[K, K]``.
        basis: orthonormal, ``[K, d]``; the first is the direction of the vector.
        length: of the vector.
    """

    points: np.ndarray
    residuals: np.ndarray
    coefficients: np.ndarray
    basis: Tensor
    length: float

    def weights(self, other: Tensor | None = None) -> np.ndarray:
        r"""Weights of the points in the quadrature, ``[K]``.

        Args:
            other: a second vector u; the weights are then :math:`(y_i^\top v)(y_i^\top u)`, of any sign, and the
                quadrature of :math:`v^\top f(A) u` is exact for polynomials of degree K - 1. With two independent
                estimates of one vector they are unbiased where squares would hold the variance of the estimate.
        """
        mine = self.length * self.coefficients[0]
        return mine * (mine if other is None else self.coefficients.T @ (self.basis @ other.double()).cpu().numpy())

    def settled(self, tolerance: float) -> tuple[np.ndarray, Tensor]:
        """Ritz values, and Ritz vectors ``[n, d]``, whose residual is at most this part of the value: the mean of f
        along such a vector is ``f(point)`` up to the square of it."""
        good = self.residuals <= tolerance * np.abs(self.points)
        chosen = torch.from_numpy(self.coefficients[:, good].T.copy()).to(self.basis)
        return self.points[good], chosen @ self.basis


def lanczos(product: Product, start: Tensor, steps: int) -> Lanczos:
    """At most ``steps`` steps from a vector, fewer where fewer reach all there is.

    Every new vector is made orthogonal to all before it, twice, so no eigenvalue is found again. The memory is that of
    ``steps`` vectors in float64.

    Args:
        product: with the matrix.
        start: the vector, ``[d]``; of 0 the only point is 0, without weight.
        steps: at least 1.
    """
    start = start.double()
    length = float(start.norm())
    if length == 0.0:
        return Lanczos(np.zeros(1), np.zeros(1), np.ones((1, 1)), torch.zeros_like(start)[None], 0.0)
    basis = start.new_empty(min(steps, len(start)), len(start))
    basis[0] = start / length
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        count = len(diagonal) + 1
        known = basis[:count]
        new = product(known[-1]).double()
        diagonal.append(float(new @ known[-1]))
        for _ in range(2):
            new = new - known.T @ (known @ new)
        rest = float(new.norm())
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        if count == len(basis) or rest <= ENDED * float(np.abs(matrix).max()):
            break
        beside.append(rest)
        basis[count] = new / rest
    points, coefficients = np.linalg.eigh(matrix)
    return Lanczos(points, rest * np.abs(coefficients[-1]), coefficients, known, length)


def without(product: Product, vectors: Tensor) -> Product:
    """The matrix on what is orthogonal to orthonormal ``vectors`` ``[n, d]``, and 0 on them."""

    def inside(vector: Tensor) -> Tensor:
        return outside(product(outside(vector, vectors)), vectors)

    return inside


def outside(vector: Tensor, vectors: Tensor) -> Tensor:
    """The part of a vector that is orthogonal to orthonormal ``vectors`` ``[n, d]``; 0 where that is rounding."""
    rest = vector - vectors.T @ (vectors @ vector)
    return rest if bool(rest.norm() > ROUNDING * vector.norm()) else torch.zeros_like(rest)
