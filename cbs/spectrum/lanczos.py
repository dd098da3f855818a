r"""Lanczos: the spectral measure of a vector for a symmetric matrix that is known only by its products with vectors.

For a matrix A with eigenpairs :math:`(\lambda_i, q_i)`, the spectral measure of a vector v has the weight
:math:`(q_i^\top v)^2` at :math:`\lambda_i`; its integral of f is :math:`v^\top f(A) v`. K steps of Lanczos give the
K-point Gauss quadrature of this measure (Golub & Meurant 2010, "Matrices, Moments and Quadrature", chapter 6). It is
exact for polynomials of degree 2K - 1 and takes one product per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""Function from a vector ``[d]`` to the matrix times the vector, ``[d]``, both in float64."""

ENDED = 1e-6
"""The iteration ends when the new part of a product, relative to the matrix, is at most this, which is about the error
of products in single precision."""

ROUNDING = 1e-12
"""A rest of a vector with at most this relative norm is rounding error of double precision."""


@dataclass(frozen=True)
class Lanczos:
    """Result of Lanczos steps from a start vector.

    Attributes:
        points: Ritz values, increasing, ``[K]``.
        residuals: norm of ``A y - point y`` for every Ritz vector y, ``[K]``.
        coefficients: coefficients of the Ritz vectors in the basis, one column each, ``[K, K]``.
        basis: orthonormal basis, ``[K, d]``; the first vector is the direction of the start vector.
        length: norm of the start vector.
    """

    points: np.ndarray
    residuals: np.ndarray
    coefficients: np.ndarray
    basis: Tensor
    length: float

    def weights(self, other: Tensor | None = None) -> np.ndarray:
        r"""Return the weights of the points in the quadrature, ``[K]``.

        Args:
            other: a second vector u; the weights are then :math:`(y_i^\top v)(y_i^\top u)`, of any sign, and the
                quadrature of :math:`v^\top f(A) u` is exact for polynomials of degree K - 1. If v and u are independent
                estimates of one vector, the weights are unbiased, whereas squares would include the variance of an
                estimate.
        """
        mine = self.length * self.coefficients[0]
        return mine * (mine if other is None else self.coefficients.T @ (self.basis @ other.double()).cpu().numpy())

    def settled(self, tolerance: float) -> tuple[np.ndarray, Tensor]:
        """Return the Ritz values, and Ritz vectors ``[n, d]``, whose residual is at most this fraction of the value.

        The mean of f along such a vector is ``f(point)``, up to an error of order ``tolerance**2``.
        """
        good = self.residuals <= tolerance * np.abs(self.points)
        chosen = torch.from_numpy(self.coefficients[:, good].T.copy()).to(self.basis)
        return self.points[good], chosen @ self.basis


def lanczos(product: Product, start: Tensor, steps: int) -> Lanczos:
    """Run at most ``steps`` Lanczos steps from a vector; fewer where the Krylov space is smaller.

    Every new vector is made orthogonal to all earlier ones, twice, so that no eigenvalue appears twice. Memory is
    needed for ``steps`` vectors in float64.

    Args:
        product: product with the matrix.
        start: start vector, ``[d]``; for the zero vector the only point is 0, with weight 0.
        steps: number of steps, at least 1.
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
    """Return the matrix restricted to the complement of orthonormal ``vectors``, ``[n, d]``, and 0 on them."""

    def inside(vector: Tensor) -> Tensor:
        return outside(product(outside(vector, vectors)), vectors)

    return inside


def outside(vector: Tensor, vectors: Tensor) -> Tensor:
    """Return the part of a vector orthogonal to orthonormal ``vectors``, ``[n, d]``; 0 where it is only rounding
    error.
    """
    rest = vector - vectors.T @ (vectors @ vector)
    return rest if bool(rest.norm() > ROUNDING * vector.norm()) else torch.zeros_like(rest)
