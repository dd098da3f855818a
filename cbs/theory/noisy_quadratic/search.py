"""Fewest steps to a target over learning rates, momenta and batch sizes at once, and at the best learning rate of all.

Settings whose stationary loss misses the target are left out. The steps of all others are multiplied by four together,
two squarings of the roots each, until some setting has arrived; only those that arrive then can win, and bisection
drops every one that misses where another arrives. All batch sizes share the roots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cbs.theory.noisy_quadratic.model import NoisyQuadratic
from cbs.theory.noisy_quadratic.modes import Modes, dot, modes, pairs

LIMIT = 2**27
"""Steps after which a search gives up."""


STRIDE = 4
"""Factor between the steps of the gallop: two squarings."""

LRS, SHORT = 64, 300
"""Learning rates of the grid of :func:`tuned`, and runs of so few steps that it looks at more."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The winner of a search: steps to target, learning rate, and momentum (or decay of the average)."""

    steps: float
    lr: float
    momentum: float


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
    """The points of a grid with the fewest steps to ``target``, one for each batch size, in their order.

    The step is one at which the loss passes the target: the first where the loss never rises, otherwise a short dip
    below the target may be missed. Ties go to the earlier momentum, then the earlier learning rate.

    Args:
        model: the noisy quadratic.
        method: one of :data:`~cbs.theory.noisy_quadratic.modes.METHODS`.
        target: expected loss to reach.
        batch_sizes: examples per step.
        lrs: learning rates.
        momenta: momenta or averaging decays.
        power: exponent of the preconditioner.
        cushion: see :func:`~cbs.theory.noisy_quadratic.modes.modes`.
        limit: steps after which the search gives up.

    Returns:
        ``None`` where no setting reaches the target within ``limit`` steps.
    """
    lr, momentum = np.asarray(lrs, float), np.asarray(momenta, float)
    each = np.tile(lr, momentum.size), np.repeat(momentum, lr.size)
    grid = modes(model, method, *each, power=power, cushion=cushion)
    if grid.initial <= target:
        return [Best(steps=0.0, lr=float(lr[0]), momentum=float(momentum[0])) for _ in batch_sizes]
    arrivals = _gallop(grid, target, batch_sizes, limit)
    found: list[Best | None] = []
    for batch_size, (steps, candidates) in zip(batch_sizes, arrivals, strict=True):
        if not len(candidates):
            found.append(None)
            continue
        fewest, winner = _bisect(grid.at(candidates), target, batch_size, steps)
        index = int(candidates[winner])
        best = Best(steps=fewest, lr=float(lr[index % lr.size]), momentum=float(momentum[index // lr.size]))
        found.append(best if fewest <= limit else None)
    return found


def _gallop(grid: Modes, target: float, batch_sizes: Sequence[float], limit: int) -> list[tuple[int, np.ndarray]]:
    """For each batch size the least power of :data:`STRIDE` at which a setting has arrived, and those that have."""
    able = np.stack([grid.floor(batch_size) <= target for batch_size in batch_sizes])
    arrivals: list[tuple[int, np.ndarray] | None] = [None] * len(batch_sizes)
    alive = np.flatnonzero(able.any(0))
    some, powers, steps = grid.at(alive), grid.at(alive).powers(1), 1
    while len(alive) and steps <= STRIDE * limit:
        with np.errstate(all="ignore"):
            products = pairs(powers)
            # Noise only adds, so most settings need no second look.
            near = np.flatnonzero(dot(some.start, products) <= target)
            from_start, from_noise = grid.at(alive[near]).parts(powers[near])
        for place, batch_size in enumerate(batch_sizes):
            if arrivals[place] is None:
                arrived = alive[near][(from_start + from_noise / batch_size <= target) & able[place, alive[near]]]
                if len(arrived):
                    arrivals[place] = steps, arrived
        waiting = [place for place, arrival in enumerate(arrivals) if arrival is None]
        kept = np.asarray(able[waiting][:, alive].any(0))
        if not kept.all():
            alive, some, powers = alive[kept], some.at(kept), powers[kept]
        with np.errstate(all="ignore"):
            powers = powers**2
            powers = powers**2
        steps *= STRIDE
    return [arrival or (steps, np.empty(0, int)) for arrival in arrivals]


def _bisect(grid: Modes, target: float, batch_size: float, high: int) -> tuple[float, int]:
    """The least step up to ``high`` at which a setting has arrived, and the first of the settings that have."""
    low, alive = high // STRIDE, np.arange(len(grid.stable))
    while high - low > 1:
        middle = (low + high) // 2
        arrived = np.flatnonzero(grid.loss(middle, batch_size) <= target)
        if len(arrived):
            alive, grid, high = alive[arrived], grid.at(arrived), middle
        else:
            low = middle
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
    """Fewest steps to ``target`` over all learning rates, the crossing interpolated in log step as for a trial.

    A grid up to the edge of stability finds the region, sections the optimum to a thousandth of the learning rate.

    Args:
        model: the noisy quadratic.
        method: one of :data:`~cbs.theory.noisy_quadratic.modes.METHODS`.
        target: expected loss to reach.
        batch_size: examples per step.
        momentum: momentum or averaging decay.
        power: exponent of the preconditioner.
        limit: steps after which the search gives up.

    Returns:
        ``None`` if no learning rate reaches the target within ``limit`` steps.
    """
    plain = method in ("sgd", "averaged")
    largest = model.largest_lr(power, 0.0 if plain else momentum, nesterov=method == "nesterov")
    if not math.isfinite(largest):
        return None
    grid = largest * np.logspace(-5, 0, LRS + 1)[:-1]
    (rough,) = best_settings(model, method, target, [batch_size], grid, [momentum], power=power, limit=limit)
    if rough is None or rough.steps == 0:
        return rough
    horizon = int(rough.steps) + 1

    def crossings(log_lrs: np.ndarray) -> np.ndarray:
        some = np.array_split(np.exp(log_lrs), -(-len(log_lrs) // 16))
        losses = [modes(model, method, lrs, momentum, power=power).losses(horizon, batch_size) for lrs in some]
        return np.array([_crossing(one, target) for one in np.concatenate(losses)])

    # Where a run is short the loss oscillates, and any learning rate up to the edge may be the first to dip below.
    top, width, count = (math.log(largest), 2.8, 801) if horizon <= SHORT else (math.log(rough.lr) + 0.17, 0.34, 9)
    places = np.linspace(top - width, top, count)
    places = places[places < math.log(largest)]
    steps = crossings(places)
    best = int(np.argmin(steps))
    low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
    found = [(float(steps[best]), float(places[best]))]
    while high - low > 1e-3:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        inner = crossings(np.array([left, right]))
        low, high = (low, right) if inner[0] <= inner[1] else (left, high)
        found += [(float(value), float(place)) for value, place in zip(inner, (left, right), strict=True)]
    fewest, place = min(found)
    return Best(steps=fewest, lr=math.exp(place), momentum=momentum)


def _crossing(losses: np.ndarray, target: float) -> float:
    """Where the losses of steps 0, 1, ... pass the target, interpolated in log step as :mod:`cbs.target` does."""
    below = np.flatnonzero(losses <= target)
    if not len(below):
        return math.inf
    last = int(below[0])
    share = float((losses[last - 1] - target) / (losses[last - 1] - losses[last]))
    return share if last == 1 else float((last - 1) * (last / (last - 1)) ** share)
