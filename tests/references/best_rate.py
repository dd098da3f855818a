"""The objective at the best learning rate of one batch size by plain sums: every basin on the grid is compared with the
runs by a normal distribution of all of them, in which the levels of the seeds have an error of 1000."""

import math

import numpy as np
from scipy.special import log_ndtr

from analysis.estimate import basin, best_rate
from analysis.estimate.studies import Study

_ANYWHERE = 1e3


def _basin(apart: float, skew: float) -> float:
    return apart**2 if skew == 0 else 2 * (math.exp(skew * apart) - skew * apart - 1) / skew**2


def bottom(study: Study, winner: int) -> tuple[np.ndarray, float, float]:
    """Return the values of the seeds, their common variance and ln of the best learning rate of a study of three
    learning rates, whose runs at the lowest are only known to be slower, with noise as seeds at the winner show it."""
    places, table = np.log(study.lrs / study.lrs[winner]), np.log(study.steps)
    left = table[winner] - table[winner].mean()
    noise = best_rate._OF_ITS_OWN * math.sqrt(left @ left / (len(left) - 1))
    cells = [(row, seed) for row, seed in np.ndindex(*table.shape) if np.isfinite(table[row, seed])]
    values = np.array([table[cell] for cell in cells])
    slower = {row: np.nanmean(table[row]) - table[winner].mean() for row in (winner, winner + 1)}
    covariance = np.array(
        [
            [
                _ANYWHERE**2 * (seed == other)
                + (basin._CRUDE * slower[row]) ** 2 * (row == beside)
                + noise**2 * ((row, seed) == (beside, other))
                for beside, other in cells
            ]
            for row, seed in cells
        ]
    )
    to_seeds = _ANYWHERE**2 * np.array([[float(seed == other) for _, other in cells] for seed in range(table.shape[1])])
    certain = np.linalg.inv(covariance)
    gain = to_seeds @ certain
    step = (places[2] - places[0]) / 2
    mean = values.mean()
    weights, levels, savings, sites = [], [], [], []
    for bend, scatter in zip(best_rate._BENDS, _prior(), strict=True):
        curvature = best_rate._USUAL * math.exp(bend) / step**2
        for at in np.linspace(places[0], places[-1], basin._PLACES):
            for skew in basin._SKEWS:
                rises = [curvature * (_basin(place - at, skew) - _basin(-at, skew)) for place in places]
                rest = values - mean - np.array([rises[row] for row, _ in cells])
                level = mean + gain @ rest
                chance = -0.5 * rest @ certain @ rest + math.log(scatter) - 0.5 * (skew / basin._SKEW) ** 2
                for seed, limit in enumerate(study.bound[0]):
                    if np.isfinite(limit):
                        spread = math.hypot(math.sqrt(2) * noise, basin._CRUDE * rises[0])
                        chance += float(log_ndtr((level[seed] + rises[0] - math.log(limit)) / spread))
                weights.append(chance)
                levels.append(level)
                savings.append(curvature * _basin(-at, skew))
                sites.append(at)
    shares = np.exp(np.array(weights) - max(weights))
    shares /= shares.sum()
    lows = np.mean(levels, axis=1) - savings
    saving = shares @ savings
    variance = shares @ (lows - shares @ lows) ** 2 + (basin._UNLIKE * saving) ** 2
    return shares @ np.array(levels) - saving, float(variance), float(np.log(study.lrs[winner]) + shares @ sites)


def _prior() -> np.ndarray:
    """Return the chances of ln of the curvature if no other condition says anything: two scatters, one of which lies
    on the best_rate."""
    levels = np.exp(-0.5 * (best_rate._BENDS / best_rate._UNKNOWN) ** 2)
    chances = np.zeros(len(levels))
    for level, share in zip(best_rate._BENDS, levels, strict=True):
        around = np.exp(-0.5 * ((best_rate._BENDS - level) / best_rate._ALIKE) ** 2)
        chances += share * around / around.sum()
    return chances / levels.sum()
