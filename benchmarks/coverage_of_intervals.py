"""Which interval for a ratio of means of correlated steps: coverage of nominal 95 % intervals, method by method.

Signal and noise are AR(1) series around means whose ratio is known: normal or lognormal, the signal with a given
coefficient of variation, the noise with at most 1. Series are blocked like those of ``MomentAverages`` before the
shipped interval sees them. Intervals that a method does not give are not counted. At last the truth moves: a noisy
quadratic is trained, its noise growing or not, and ``MomentAverages`` sees its steps through the default window and
without one. One core, minutes; not run by ``make bench``: ``python benchmarks/coverage_of_intervals.py``. With
``--quick`` a tenth of the streams, none longer than 400 steps, in seconds: whether it runs, and no more than that.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import product

import numpy as np
from scipy import stats
from scipy.signal import lfilter

from cbs.noise_scale.averages import MOST_BLOCKS, MomentAverages
from cbs.noise_scale.interval import ratio_interval
from cbs.noise_scale.meter import SHARE

REPLICATIONS, QUICK = 1000, 100
RESAMPLES = 400
RATIO = 20.0
STEPS = (100, 400, 2000)
STEPS_OF_A_RUN = (50, 400)
CORRELATIONS = (0.0, 0.5, 0.9)
VARIATIONS = (0.5, 3.0)
KINDS = ("normal", "lognormal")
Ends = tuple[np.ndarray, np.ndarray]
"""Lower and upper ends, each ``[replications]``; 0 and infinity where open, NaN where no interval is given."""


def streams(
    rng: np.random.Generator, replications: int, steps: int, rho: float, variation: float, kind: str
) -> np.ndarray:
    """Signal and noise, shape ``[2, replications, steps]``."""
    shocks = rng.standard_normal((2, replications, steps))
    shocks[..., 1:] *= math.sqrt(1 - rho**2)
    series = lfilter([1.0], [1.0, -rho], shocks, axis=-1)
    if kind == "lognormal":
        series = (np.exp(series) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    size = np.array([variation, min(variation, 1.0)])[:, None, None]
    return np.array([1.0, RATIO])[:, None, None] * (1 + size * series)


def shipped(moments: np.ndarray, rng: np.random.Generator) -> Ends:
    """Fieller with the slowest cosines. None is given where the steps are too correlated."""
    found = [ratio_interval(*pair) for pair in in_blocks(moments, shortest_block(moments)).swapaxes(0, 1)]
    ends = np.array([(0.0 if end.low is None else end.low, end.high or math.inf) for end in found])
    ends[[end.note.startswith("no interval: the steps") for end in found]] = math.nan
    ends[["no positive value" in end.note for end in found]] = math.inf  # given, and empty
    return ends[:, 0], ends[:, 1]


def batch_means(moments: np.ndarray, rng: np.random.Generator) -> Ends:
    """Fieller with the covariance of the means of blocks."""
    return fieller(in_blocks(moments, root_block(moments)))


def jackknife(moments: np.ndarray, rng: np.random.Generator) -> Ends:
    """Delete one block: the log ratio and its error. None is given where a mean is not positive."""
    blocks = in_blocks(moments, root_block(moments))
    count = blocks.shape[2]
    without = (blocks.sum(axis=2, keepdims=True) - blocks) / (count - 1)
    without = np.where((without > 0).all(axis=(0, 2))[:, None], without, math.nan)
    logs = np.log(without[1] / without[0])
    reach = stats.t.ppf(0.975, count - 1) * np.sqrt((count - 1) * logs.var(axis=1))
    signal, noise = blocks.mean(axis=2)
    return noise / signal * np.exp(-reach), noise / signal * np.exp(reach)


def bootstrap(moments: np.ndarray, rng: np.random.Generator) -> Ends:
    """Percentiles of the ratio over resamples of moving blocks; a signal that is not positive makes it infinite."""
    length = root_block(moments)
    sums = np.cumsum(np.pad(moments, ((0, 0), (0, 0), (1, 0))), axis=2)
    moving = sums[..., length:] - sums[..., :-length]
    ends = np.empty((2, moments.shape[1]))
    for index in range(moments.shape[1]):
        starts = rng.integers(moving.shape[2], size=(RESAMPLES, moments.shape[2] // length))
        signal, noise = moving[:, index, starts].sum(axis=2)
        ratio = np.where(signal > 0, np.maximum(noise, 0.0) / signal, math.inf)
        ends[:, index] = np.quantile(ratio, [0.025, 0.975], method="nearest")
    return ends[0], ends[1]


def uncorrelated(moments: np.ndarray, rng: np.random.Generator) -> Ends:
    """Fieller as if steps were independent."""
    return fieller(moments)


METHODS: dict[str, Callable[[np.ndarray, np.random.Generator], Ends]] = {
    "shipped": shipped,
    "batch means": batch_means,
    "jackknife": jackknife,
    "bootstrap": bootstrap,
    "iid": uncorrelated,
}


def fieller(samples: np.ndarray) -> Ends:
    """Positive ratios that Student's t of independent ``samples`` ``[2, replications, samples]`` does not reject."""
    count = samples.shape[2]
    means = samples.mean(axis=2)
    rest = samples - means[..., None]
    covariance = np.einsum("irt,jrt->ijr", rest, rest) / (count - 1) / count
    products = means[:, None] * means[None] - stats.t.ppf(0.975, count - 1) ** 2 * covariance
    a, b, c = products[0, 0], products[0, 1], products[1, 1]
    root = np.sqrt(np.maximum(b * b - a * c, 0.0))
    # a r^2 - 2 b r + c <= 0, whose larger root is infinite where a <= 0; where c <= 0 zero is not excluded
    low = np.where(c <= 0, 0.0, c / (b + root))
    high = np.where(a <= 0, math.inf, (b + root) / a)
    return low, high


def in_blocks(moments: np.ndarray, length: int) -> np.ndarray:
    """Means of blocks of ``length`` steps, shape ``[2, replications, blocks]``."""
    return moments.reshape(*moments.shape[:2], -1, length).mean(axis=3)


def root_block(moments: np.ndarray) -> int:
    """The largest divisor of the number of steps that is at most its root."""
    steps = moments.shape[2]
    return max(length for length in range(1, math.isqrt(steps) + 1) if steps % length == 0)


def shortest_block(moments: np.ndarray) -> int:
    """The shortest block, doubling from one step, that ``MomentAverages`` would use."""
    return 2 ** max(0, math.ceil(math.log2(moments.shape[2] / MOST_BLOCKS)))


def measure(moments: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shape ``[methods, 3]``: share of streams with an interval, share of these that hold the ratio, and the median
    width relative to the shipped one where both are bounded."""
    ends = np.array([method(moments, rng) for method in METHODS.values()])
    rows = []
    for low, high in ends:
        given = ~np.isnan(low)
        bounded = np.isfinite(low + high + ends[0].sum(axis=0))
        widths = (high[bounded] - low[bounded]) / np.diff(ends[0][:, bounded], axis=0)[0]
        covered = (low <= RATIO) & (high >= RATIO)
        rows.append((given.mean(), covered[given].mean(), np.median(widths) if bounded.any() else math.nan))
    return np.array(rows)


MOVING = {"fixed": (0.0, 1.0), "trained": (0.05, 1.0), "trained, noise grows": (0.02, 1.003)}
"""Learning rate, and what the noise is multiplied with in every step."""


def trained(rng: np.random.Generator, steps: int, batch: int, lr: float, growth: float) -> np.ndarray:
    """Signal and noise of two halves of every batch, and what they are in truth, shape ``[steps, 4]``."""
    curvature, deviation = np.geomspace(0.01, 1.0, 64), 3.0
    theta = 3 * rng.standard_normal(64) * curvature**-0.25
    rows = []
    for _ in range(steps):
        gradient = curvature * theta
        halves = gradient + deviation * rng.standard_normal((2, 64)) / math.sqrt(batch / 2)
        whole = halves.mean(0)
        noise = batch * ((halves**2).sum(1).mean() - (whole**2).sum())
        rows.append([(whole**2).sum() - noise / batch, noise, (gradient**2).sum(), 64 * deviation**2])
        theta, deviation = theta - lr * whole, deviation * growth
    return np.array(rows)


def moving(replications: int) -> None:
    """Print how often an interval holds the ratio of the means over the steps that it is for."""
    print("\n| truth | B | steps | window | given | held |\n" + "|---" * 6 + "|")
    for (name, how), batch, steps in product(MOVING.items(), (16, 64), STEPS_OF_A_RUN):
        runs = [trained(np.random.default_rng([1, seed]), steps, batch, *how) for seed in range(replications)]
        for window in (None, SHARE):
            held = []
            for run in runs:
                averages = MomentAverages(window=window)
                for signal, noise, *_ in run:
                    averages.add(batch, [signal], [noise])
                found = averages.estimate()
                _, _, signal, noise = run[-found.steps :].mean(0)
                if found.low is not None or found.high is not None:
                    held.append((found.low or 0.0) <= noise / signal <= (found.high or math.inf))
            share = f"{100 * np.mean(held):.1f}" if held else ""
            print(f"| {name} | {batch} | {steps} | {window or 'all'} | {100 * len(held) / len(runs):.0f} | {share} |")


def percent(shares: np.ndarray) -> str:
    """The smallest and the largest."""
    low, high = (f"{100 * end:.0f}" for end in (shares.min(), shares.max()))
    return low if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter streams")
    quick = parser.parse_args().quick
    replications, lengths = (QUICK, STEPS[:2]) if quick else (REPLICATIONS, STEPS)
    error = 100 * math.sqrt(0.95 * 0.05 / replications)
    print(f"Coverage in % of nominal 95 % intervals (standard error {error:.1f} at 95), {replications} streams a cell.")
    print("given: share of streams with a shipped interval; (w): median width relative to the shipped interval.\n")
    print("| rho | steps | variation | kind | given | " + " | ".join(METHODS) + " |\n" + "|---" * 10 + "|")
    found = {}
    for cell, key in enumerate(product(CORRELATIONS, lengths, VARIATIONS, KINDS)):
        rho, steps, variation, kind = key
        rng = np.random.default_rng([0, cell])
        found[key] = rows = measure(streams(rng, replications, steps, rho, variation, kind), rng)
        cells = [f"{100 * covered:.1f} ({width:.2f})" for _, covered, width in rows]
        print("| " + " | ".join([*map(str, key), f"{100 * rows[0, 0]:.0f}", *cells]) + " |", flush=True)
    print("\nLowest and highest over the variations and kinds; (w): the median.\n")
    print("| rho | steps | given | " + " | ".join(METHODS) + " |\n" + "|---" * 8 + "|")
    for rho, steps in product(CORRELATIONS, lengths):
        rows = np.stack([rows for key, rows in found.items() if key[:2] == (rho, steps)])
        cells = [f"{percent(part[:, 1])} ({np.nanmedian(part[:, 2]):.2f})" for part in rows.swapaxes(0, 1)]
        print("| " + " | ".join([str(rho), str(steps), percent(rows[:, 0, 0]), *cells]) + " |")
    moving(20 if quick else 400)


if __name__ == "__main__":
    main()
