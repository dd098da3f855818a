"""The draws of ``analysis.estimate`` cell by cell: joint normal distributions with every covariance written out, and
conditioned by an explicit inverse."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Cells(NamedTuple):
    """Every (batch size, seed) with a value: ln of the batch sizes, seeds and objectives, shape ``[C]`` each."""

    x: np.ndarray
    seed: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, log_sizes: np.ndarray, values: np.ndarray) -> Cells:
        places = [(m, n) for m, n in np.ndindex(values.shape) if np.isfinite(values[m, n])]
        rows = [(log_sizes[m], n, values[m, n]) for m, n in places]
        return cls(*map(np.array, zip(*rows, strict=True)))


def correlation(cells: Cells, share: float, length: float) -> np.ndarray:
    """Of the noise of two cells: what a seed shares is a Matérn process of order 3/2 in ``ln B``."""
    found = np.zeros((len(cells.y), len(cells.y)))
    for i, j in np.ndindex(found.shape):
        if i == j:
            found[i, j] = 1.0
        elif cells.seed[i] == cells.seed[j]:
            apart = math.sqrt(3) * abs(cells.x[i] - cells.x[j]) / length
            found[i, j] = share * (1 + apart) * math.exp(-apart)
    return found


def means_and_likelihood(
    cells: Cells, share: float, length: float, sigma: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Generalised least-squares means of the batch sizes, their covariance, and the ln of the restricted likelihood of
    Patterson and Thompson (1971) without its constant."""
    sizes = np.unique(cells.x)
    design = np.array([[float(x == size) for size in sizes] for x in cells.x])
    covariance = sigma**2 * correlation(cells, share, length)
    inverse = np.linalg.inv(covariance)
    information = design.T @ inverse @ design
    means = np.linalg.inv(information) @ design.T @ inverse @ cells.y
    rest = cells.y - design @ means
    logs = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(information)[1] + rest @ inverse @ rest
    return means, np.linalg.inv(information), -0.5 * float(logs)


def departures(points: np.ndarray, start: float, size: float, length: float, steps: int = 60) -> np.ndarray:
    """Covariance of the integrals from ``start`` to every point of a process whose covariance is a Matern kernel of
    order 3/2 with the variance ``2 size^2``: a double integral, the inner one in closed form, the outer one by Gauss
    and Legendre."""
    rate = math.sqrt(3) / length

    def up_to(at: float) -> float:
        # of (1 + r t) exp(-r t) from 0
        return (2 - (2 + rate * at) * math.exp(-rate * at)) / rate

    def inner(x: float, other: float) -> float:
        if other <= x:
            return up_to(x - start) - up_to(x - other)
        return up_to(x - start) + up_to(other - x)

    nodes, weights = np.polynomial.legendre.leggauss(steps)
    found = np.zeros((len(points), len(points)))
    for i, end in enumerate(points):
        for j, other in enumerate(points):
            # the kernel has a corner where both ends meet
            for low, high in ((start, min(end, other)), (min(end, other), end)):
                at = low + (high - low) * (nodes + 1) / 2
                found[i, j] += (high - low) / 2 * sum(w * inner(x, other) for x, w in zip(at, weights, strict=True))
    return 2 * size**2 * found


class Mixed(NamedTuple):
    """Mean and covariance of the curve at points, and ln of the density of the cells."""

    mean: np.ndarray
    covariance: np.ndarray
    log_density: float


def power_law(
    points: np.ndarray, law: tuple[float, float], spreads: tuple[float, float], sharpness: float = 1.0
) -> np.ndarray:
    """The power law of a place and a ln of the exponent (or, infinitely sharp, exponential saturation) at points, and
    what a standard deviation of each adds, shape ``[3, K]``."""
    small = 1e-5

    def power(place: float, log_exponent: float) -> np.ndarray:
        if sharpness == math.inf:
            grown = [math.exp(math.exp(log_exponent) * (x - place)) for x in points]
            return np.array([-math.log(1 - math.exp(-u)) for u in grown])
        exponent = sharpness * math.exp(log_exponent)
        return np.array([math.log1p(math.exp(-exponent * (x - place))) for x in points]) / sharpness

    by_place = (power(law[0] + small, law[1]) - power(law[0] - small, law[1])) / (2 * small)
    by_exponent = (power(law[0], law[1] + small) - power(law[0], law[1] - small)) / (2 * small)
    # the mean of ln a is 0
    return np.array([power(*law) - law[1] * by_exponent, spreads[0] * by_place, spreads[1] * by_exponent])


def two_lines(points: np.ndarray, place: float, before: tuple[float, float], after: tuple[float, float]) -> np.ndarray:
    """Two straight lines that meet at a place, given means and standard deviations of their exponents; as
    :func:`power_law`."""
    left = np.array([min(x - place, 0.0) for x in points])
    right = np.array([max(x - place, 0.0) for x in points])
    return np.array([-before[0] * left - after[0] * right, before[1] * left, after[1] * right])


def conditioned(
    cells: Cells, points: np.ndarray, noise: np.ndarray, law: np.ndarray, departure: np.ndarray, level: float,
    level_spread: float,
) -> Mixed:  # fmt: skip
    """The curve at points given all cells, for one size of everything.

    Args:
        cells: what was measured.
        points: ln of batch sizes, shape ``[K]``.
        noise: covariance of the cells around the curve, shape ``[C, C]``.
        law: :func:`power_law` or :func:`two_lines` at the batch sizes of the cells and then the points, ``[3, C + K]``.
        departure: covariance of the departure there, ``[C + K, C + K]``.
        level, level_spread: mean and standard deviation of the level.
    """
    mean = level + law[0]
    prior = level_spread**2 + departure + law[1:].T @ law[1:]
    count = len(cells.y)
    seen = prior[:count, :count] + noise
    gain = prior[count:, :count] @ np.linalg.inv(seen)
    off = cells.y - mean[:count]
    density = -0.5 * float(np.linalg.slogdet(seen)[1] + off @ np.linalg.inv(seen) @ off)
    return Mixed(mean[count:] + gain @ off, prior[count:, count:] - gain @ prior[:count, count:], density)
