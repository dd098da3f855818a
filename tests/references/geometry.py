"""Slow twins of the geometries: one group, one coordinate, one row at a time, in numpy and float64.

A twin is called like its geometry, takes the mean gradient of one parameter tensor for every group, the sizes of the
groups and the metric of the optimizer, and returns ``(signal, noise)`` of that tensor.
"""

import math
from collections.abc import Sequence

import numpy as np

Groups = Sequence[np.ndarray]


def l2(groups: Groups, sizes: Sequence[int], metric: np.ndarray) -> tuple[float, float]:
    return preconditioned(groups, sizes, np.ones_like(metric))


def preconditioned(groups: Groups, sizes: Sequence[int], metric: np.ndarray) -> tuple[float, float]:
    signal = noise = 0.0
    for index in np.ndindex(metric.shape):
        truth, variance = two_sizes([group[index] ** 2 for group in groups], mean(groups, sizes)[index] ** 2, sizes)
        signal += metric[index] * truth
        noise += metric[index] * variance
    return signal, noise


def l1(groups: Groups, sizes: Sequence[int], metric: np.ndarray) -> tuple[float, float]:
    signal = noise = 0.0
    for index in np.ndindex(metric.shape):
        entry = mean(groups, sizes)[index]
        _, variance = two_sizes([group[index] ** 2 for group in groups], entry**2, sizes)
        signal += abs(entry)
        noise += math.sqrt(max(variance, 0.0)) / gaussian_root(len(groups))
    return signal, noise


def nuclear(groups: Groups, sizes: Sequence[int], metric: np.ndarray) -> tuple[float, float]:
    flipped = metric.shape[0] > metric.shape[1]
    matrices = [group.T if flipped else group for group in groups]
    whole = mean(matrices, sizes)
    rows = whole.shape[0]
    covariance = np.zeros((rows, rows))
    for i in range(rows):
        for j in range(rows):
            products = [sum(matrix[i, k] * matrix[j, k] for k in range(whole.shape[1])) for matrix in matrices]
            _, covariance[i, j] = two_sizes(products, sum(whole[i] * whole[j]), sizes)
    noise = sum(math.sqrt(max(value, 0.0)) for value in np.linalg.eigvalsh(covariance))
    return float(np.linalg.svd(whole, compute_uv=False).sum()), noise


def two_sizes(small: Sequence[float], big: float, sizes: Sequence[int]) -> tuple[float, float]:
    """``(T(G), T(Sigma))`` from ``E T(g) = T(G) + T(Sigma)/size`` for the groups, on average, and for all together.

    A group counts as much in the average as in the gradient of all: by its share of the examples.
    """
    shares = [size / sum(sizes) for size in sizes]
    inverse_small = sum(share / size for share, size in zip(shares, sizes, strict=True))
    inverse_big = 1 / sum(sizes)
    average = sum(share * value for share, value in zip(shares, small, strict=True))
    slope = (average - big) / (inverse_small - inverse_big)
    return big - slope * inverse_big, slope


def mean(groups: Groups, sizes: Sequence[int]) -> np.ndarray:
    """Mean gradient over all examples."""
    return sum(size * group for size, group in zip(sizes, groups, strict=True)) / sum(sizes)


def gaussian_root(groups: int) -> float:
    """Mean standard deviation of ``groups`` standard normal numbers, from the moments of a chi variable."""
    gammas = math.gamma(groups / 2) / math.gamma((groups - 1) / 2)
    return math.sqrt(2.0) * gammas / math.sqrt(groups - 1)


def adam_metric(history: Groups, beta2: float, eps: float) -> np.ndarray:
    """``1 / (sqrt(v) + eps)`` after the gradients of ``history``, v bias-corrected."""
    metric = np.zeros_like(history[0])
    for index in np.ndindex(metric.shape):
        square = 0.0
        for gradient in history:
            square = beta2 * square + (1 - beta2) * gradient[index] ** 2
        metric[index] = 1.0 / (math.sqrt(square / (1 - beta2 ** len(history))) + eps)
    return metric
