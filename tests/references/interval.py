"""The slow twin of the interval and of the averages: dense matrices, every step kept, ends found by bisection."""

import math

import numpy as np
from scipy import optimize, stats


def blocks(moments: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Per-step moments ``[steps, 2]`` as block means ``[2, blocks]``, with the steps of every block: the shortest
    blocks, doubling from one step, of which there are at most ``most``."""
    length = 1
    while math.ceil(len(moments) / length) > most:
        length *= 2
    parts = [moments[start : start + length] for start in range(0, len(moments), length)]
    return np.stack([part.mean(axis=0) for part in parts], axis=1), np.array([len(part) for part in parts], dtype=float)


def ratio_interval(
    signal: np.ndarray, noise: np.ndarray, steps: np.ndarray, confidence: float
) -> tuple[float, float] | None:
    """Smallest and largest positive ratio that is not rejected (0 and infinity included), ``None`` where there are
    fewer than twelve waves or eight independent steps. One series, some ratio near the estimate must be accepted."""
    count = len(signal)
    root = np.sqrt(steps / steps.mean())
    mean = root / np.linalg.norm(root)
    middle = np.cumsum(steps) - steps / 2
    basis: list[np.ndarray] = []
    for vector in (root, root * (middle - middle.mean())):
        rest = orthogonal(vector, basis)
        basis.append(rest / np.linalg.norm(rest))
    unseen = len(basis)
    share = steps / steps.sum()
    for index in range(unseen, min(unseen + 48, math.floor(1 / share.max()))):
        wave = root * np.cos(np.pi * index * (np.cumsum(share) - share / 2))
        rest = orthogonal(wave, basis)
        basis.append(rest / np.linalg.norm(rest))
    waves = basis[unseen:]
    if len(waves) < 12:
        return None

    def contrast(ratio: float) -> np.ndarray:
        return root * (noise - ratio * signal)

    linear = (root * signal) @ mean * root * noise - (root * noise) @ mean * root * signal
    squares = np.array([(wave @ linear) ** 2 for wave in waves])
    fits = []
    for time in np.geomspace(1.0, 2.0 * count, 48):
        rho = (time - 1) / (time + 1)
        covariance = rho ** np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        spectrum = np.array([wave @ covariance @ wave for wave in waves])
        cost = np.log(spectrum).sum() + len(waves) * np.log((squares / spectrum).sum())
        independent = count / time
        fits.append((cost, independent, mean @ covariance @ mean / spectrum[:8]))
    _, independent, shares = min(fits, key=lambda fit: fit[0])
    if independent < 8:
        return None
    critical = stats.t.ppf(0.5 + confidence / 2, 8) ** 2

    def excess(ratio: float) -> float:
        variance = np.mean([share * (wave @ contrast(ratio)) ** 2 for share, wave in zip(shares, waves, strict=False)])
        return (mean @ contrast(ratio)) ** 2 / (critical * variance) - 1.0

    grid = np.geomspace(1e-4, 1e6, 4001)
    accepted = np.array([excess(ratio) <= 0 for ratio in grid])
    first, last = np.flatnonzero(accepted)[[0, -1]]
    low = 0.0 if first == 0 else float(optimize.brentq(excess, grid[first - 1], grid[first], xtol=1e-13, rtol=1e-13))
    high = (
        math.inf
        if last == len(grid) - 1
        else float(optimize.brentq(excess, grid[last], grid[last + 1], xtol=1e-13, rtol=1e-13))
    )
    return low, high


def orthogonal(vector: np.ndarray, basis: list[np.ndarray]) -> np.ndarray:
    """What is left of ``vector``; projected twice, for rounding."""
    for _ in range(2):
        for other in basis:
            vector = vector - (other @ vector) * other
    return vector
