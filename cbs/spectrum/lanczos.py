r"""Where a vector lies along the eigenvalues of a symmetric matrix that is known by its products alone.

Of a matrix with eigenpairs :math:`(\lambda_i, q_i)` a vector v has the spectral measure that puts :math:`(q_i^\top v)^2`
on :math:`\lambda_i`; its integral of f is :math:`v^\top f(A) v`. K steps of Lanczos give the K-point Gauss quadrature
of this measure (Golub & Welsch 1969; Golub & Meurant 2010, "Matrices, Moments and Quadrature", theorem 6.6): exact for
polynomials of degree 2K - 1, from one product a step. With vectors of independent random signs the measure is, in the
mean, the density of all eigenvalues (Ubaru, Chen & Saad 2017, doi 10.1137/16M1104974, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""A vector ``[d]`` -> the matrix times it, ``[d]``, both in float64."""

ENDED = 1e-6
"""The vectors found span all that the products reach once what is new of one is this part of the matrix: what products
in single precision leave of nothing."""


class Quadrature(NamedTuple):
    """Points and their weights, both ``[K]``, by increasing point."""

    points: np.ndarray
    weights: np.ndarray


def quadrature(product: Product, start: Tensor, nodes: int, other: Tensor | None = None) -> Quadrature:
    r"""The spectral measure of a vector in at most ``nodes`` points, fewer where fewer hold it all.

    Every new vector is made orthogonal to all before it, twice, so no eigenvalue is found again (Parlett 1998, "The
    Symmetric Eigenvalue Problem", section 6.9). The memory is that of ``nodes`` vectors in float64.

    Args:
        product: with the matrix.
        start: the vector v, ``[d]``.
        nodes: most points, at least 1.
        other: a second vector u; the weights are then :math:`(q_i^\top v)(q_i^\top u)`, of any sign, and the quadrature
            of :math:`v^\top f(A) u` is exact for polynomials of degree K - 1. With two independent estimates of one
            vector they are unbiased where squares would hold the variance of the estimate.
    """
    start = start.double()
    length = float(start.norm())
    if length == 0.0:
        return Quadrature(np.zeros(1), np.zeros(1))
    basis = [start / length]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        new = product(basis[-1]).double()
        diagonal.append(float(new @ basis[-1]))
        known = torch.stack(basis)
        for _ in range(2):
            new = new - known.T @ (known @ new)
        rest = float(new.norm())
        if len(basis) in (nodes, len(start)) or rest <= ENDED * float(np.abs(_matrix(diagonal, beside)).max()):
            break
        beside.append(rest)
        basis.append(new / rest)
    points, vectors = np.linalg.eigh(_matrix(diagonal, beside))
    second = np.eye(len(points))[0] * length if other is None else (known @ other.double()).cpu().numpy()
    return Quadrature(points, length * vectors[0] * (vectors.T @ second))


def _matrix(diagonal: list[float], beside: list[float]) -> np.ndarray:
    return np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
