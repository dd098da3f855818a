"""Fewest steps to a target, over a grid of learning rates, momenta and batch sizes at once, or at the best learning
rate.

Settings whose stationary loss misses the target are dropped. The number of steps is multiplied by eight for all others
together, by three squarings of the roots, until some setting has reached the target; only those that have reached it by
then can win, and bisection drops every one that misses it where another reaches it. All batch sizes share the roots.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from extensions.theory.noisy_quadratic.model import Modes, NoisyQuadratic, modes_of

LIMIT = 2**27  # Number of steps after which a search gives up

# Factor between the step counts of the search upwards: three squarings
STRIDE = 8

# Distance in ln lr below the edge of stability from which on `tuned` places points ever closer to the edge
NEAR = 0.04

# Number of learning rates in the grid of `tuned`, and number of steps below which it evaluates more
LRS, SHORT = 64, 300


@dataclass(frozen=True, kw_only=True)
class Best:
    """Result of a search: steps to target, learning rate, and momentum (or decay of the average)."""

    steps: float
    lr: float
    momentum: float


@np.errstate(all="ignore")
def best_settings(
    model: NoisyQuadratic,
    method: str,
    target: float,
    batch_sizes: Sequence[float],
    lrs: Sequence[float] | np.ndarray,
    momenta: Sequence[float] | np.ndarray = (0.0,),
    *,
    power: float = 0.0,
    cushion: float = 0.0,
    limit: int = LIMIT,
) -> list[Best | None]:
    """Return the points of a grid with the fewest steps to ``target``, one for each batch size, in order.

    The step is one at which the loss passes the target: the first one if the loss never rises, otherwise a short dip
    below the target may be missed. Ties go to the earlier momentum, then to the earlier learning rate. A point is
    ``None`` if no setting reaches the target, an expected loss, within ``limit`` steps.

    Arguments of the settings, among them ``momenta`` for the decays of an average, are those of
    :func:`~extensions.theory.noisy_quadratic.model.modes_of`.
    """
    lr, momentum = np.asarray(lrs, float), np.asarray(momenta, float)
    each = np.tile(lr, momentum.size), np.repeat(momentum, lr.size)
    grid = modes_of(model, method, *each, power=power, cushion=cushion)
    if grid.initial <= target:
        return [Best(steps=0.0, lr=float(lr[0]), momentum=float(momentum[0])) for _ in batch_sizes]
    bests: list[Best | None] = []
    arrivals = _gallop(grid, target, batch_sizes, limit)
    for batch_size, (steps, candidates) in zip(batch_sizes, arrivals, strict=True):
        if not len(candidates):
            bests.append(None)
            continue
        fewest, winner = _bisect(grid.at(candidates), target, batch_size, steps)
        index = int(candidates[winner])
        best = Best(steps=fewest, lr=float(lr[index % lr.size]), momentum=float(momentum[index // lr.size]))
        bests.append(best if fewest <= limit else None)
    return bests


def _gallop(grid: Modes, target: float, batch_sizes: Sequence[float], limit: int) -> list[tuple[int, np.ndarray]]:
    """Return, for each batch size, the least power of :data:`STRIDE` at which a setting has reached the target, and
    those settings."""
    able = np.stack([grid.floor(batch_size) <= target for batch_size in batch_sizes])
    waiting = [index for index, settings in enumerate(able) if settings.any()]
    arrivals, steps = [(limit + 1, np.empty(0, int))] * len(batch_sizes), 1
    alive = np.flatnonzero(able.any(0))
    some, powers = grid.at(alive), grid.roots[alive]
    while waiting and steps <= STRIDE * limit:
        # Noise only adds to the loss, so most settings need no second evaluation.
        near = (some.from_start(powers) <= target).nonzero()[0]
        if len(near):
            from_start, from_noise = some.at(near).parts(powers[near])
            for index in tuple(waiting):
                there = (from_start + from_noise / batch_sizes[index] <= target) & able[index, alive[near]]
                if there.any():
                    arrivals[index] = steps, alive[near][there]
                    waiting.remove(index)
            kept = np.asarray(able[waiting][:, alive].any(0))
            if not kept.all():
                alive, some, powers = alive[kept], some.at(kept), powers[kept]
        steps *= STRIDE
        for _ in range(3):
            powers = powers**2
    return arrivals


def _bisect(grid: Modes, target: float, batch_size: float, high: int) -> tuple[float, int]:
    """Return the smallest step up to ``high`` at which a setting has reached the target, and the first such setting."""
    low, alive, logs = high // STRIDE, np.arange(len(grid.stable)), np.log(grid.roots)
    while high - low > 1:
        middle = (low + high) // 2
        # Squaring the roots would also work, but its rounding errors grow with the number of steps.
        from_start, from_noise = grid.parts(np.exp(middle * logs))
        arrived = (from_start + from_noise / batch_size <= target).nonzero()[0]
        if not len(arrived):
            low = middle
            continue
        high = middle
        if len(arrived) < len(alive):
            alive, grid, logs = alive[arrived], grid.at(arrived), logs[arrived]
    return float(high), int(alive[0])


def tuned(
    model: NoisyQuadratic,
    method: str,
    target: float,
    batch_size: float,
    momentum: float = 0.0,
    *,
    power: float = 0.0,
    limit: int = LIMIT,
) -> Best | None:
    """Return the fewest steps to ``target`` over all learning rates, with the crossing interpolated in log step.

    A grid up to the edge of stability finds the region; section search finds the optimum to a thousandth of the
    learning rate, or to a tenth of its distance from the edge. Arguments as for :func:`best_settings`; ``None`` if no
    learning rate reaches the target within ``limit`` steps.
    """
    plain = method in ("sgd", "averaged")
    largest = model.largest_lr(power, 0.0 if plain else momentum, nesterov=method == "nesterov")
    if not math.isfinite(largest):
        return None
    for high in (0, -5):  # from 1e-10 of the edge upwards, which noise requires at the smallest batch sizes
        grid = largest * np.logspace(high - 5, high, LRS + 1)[:-1]
        (rough,) = best_settings(model, method, target, [batch_size], grid, [momentum], power=power, limit=limit)
        if rough is not None and rough.lr > grid[0]:
            break
    if rough is None or rough.steps == 0:
        return rough
    short = rough.steps <= SHORT

    def crossings(log_lrs: np.ndarray) -> np.ndarray:
        steps_there = []
        for lrs in np.array_split(np.exp(log_lrs), -(-len(log_lrs) // 16)):
            settings = modes_of(model, method, lrs, momentum, power=power)
            horizon = int(rough.steps) + 1
            passed = _first(settings, target, batch_size, horizon) if short else passages(settings, target, batch_size)
            steps_there.append(passed)
        return np.concatenate(steps_there)

    places = math.log(rough.lr) + np.linspace(-0.2, 0.2, 11)
    if short:
        # If the loss oscillates, any learning rate up to the edge may be the first to dip below the target.
        places = np.union1d(places, math.log(largest) + np.linspace(-2.8, 0.0, 801))
    edge = math.log(largest)
    if places[-1] > edge - NEAR:
        # The best learning rate of large batches lies just below the edge, where steps vary within the grid spacing.
        places = np.union1d(places[places < edge - NEAR], edge - np.geomspace(NEAR, 1e-6, 24))
    steps = crossings(places)
    best = int(np.argmin(steps))
    low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
    candidates = [(float(steps[best]), float(places[best]))]
    while high - low > min(1e-3, 0.1 * (edge - high)):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        inner = crossings(np.array([left, right]))
        low, high = (low, right) if inner[0] <= inner[1] else (left, high)
        candidates += [(float(value), float(log_lr)) for value, log_lr in zip(inner, (left, right), strict=True)]
    fewest, log_lr = min(candidates)
    return Best(steps=fewest, lr=math.exp(log_lr), momentum=momentum)


def _first(settings: Modes, target: float, batch_size: float, horizon: int) -> np.ndarray:
    """Return the first crossing of each setting, evaluating every step; infinity beyond ``horizon``."""
    crossings = []
    for losses in settings.losses(horizon, batch_size):
        below = np.flatnonzero(losses <= target)
        step = int(below[0]) if len(below) else 0
        crossings.append(_between(step, losses[step - 1], losses[step], target) if step else math.inf)
    return np.array(crossings)


@np.errstate(all="ignore")
def passages(settings: Modes, target: float, batch_size: float) -> np.ndarray:
    """Return a crossing of each setting of a row, by bisection; infinity if there is none."""
    crossings = np.full(len(settings.stable), math.inf)
    able = np.flatnonzero(settings.floor(batch_size) <= target)
    some, high = settings.at(able), np.full(len(able), math.inf)

    def losses(powers: np.ndarray) -> np.ndarray:
        from_start, from_noise = some.parts(powers)
        return from_start + from_noise / batch_size

    powers, steps = some.roots, 1
    while steps <= LIMIT and np.isinf(high).any():
        high[np.isinf(high) & (losses(powers) <= target)] = steps
        powers, steps = powers**2, steps * 2
    some, able, high = some.at(np.isfinite(high)), able[np.isfinite(high)], high[np.isfinite(high)]
    low = high // 2
    while len(able) and (high - low).max() > 1:
        middle = np.maximum((low + high) // 2, 1)
        arrived = losses(some.powers(middle[:, None, None])) <= target
        low, high = np.where(arrived, low, middle), np.where(arrived, middle, high)
    if len(able):
        ends = [losses(some.powers(step[:, None, None])) for step in (np.maximum(high - 1, 1), high)]
        before = np.where(high > 1, ends[0], settings.initial)
        crossings[able] = [_between(int(k), b, a, target) for k, b, a in zip(high, before, ends[1], strict=True)]
    return crossings


def _between(step: int, before: float, after: float, target: float) -> float:
    """Return where the loss passes the target within a step, interpolated in log step."""
    share = (before - target) / (before - after)
    return share if step == 1 else float((step - 1) * (step / (step - 1)) ** share)
