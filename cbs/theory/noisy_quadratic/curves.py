"""Steps to target over batch sizes on the noisy quadratic, as a sweep would measure them, for named optimizers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from cbs.theory.noisy_quadratic.growth import best_growth
from cbs.theory.noisy_quadratic.model import NoisyQuadratic
from cbs.theory.noisy_quadratic.schedules import best_pieces
from cbs.theory.noisy_quadratic.search import Best, best_settings, tuned

OPTIMIZERS = {
    "sgd": "sgd",
    "momentum": "heavy_ball",
    "nesterov": "nesterov",
    "ema": "averaged",
    "pieces": "sgd",
    "growth": "sgd",
}
"""What can be asked for, and the method it is: momentum and the decay of the average are tuned at every batch size
unless given; ``pieces`` has a piecewise constant learning rate, ``growth`` a batch size that grows, whose mean over the
steps is the batch size."""

PIECES = 10
"""Pieces of equal length."""

MOMENTA = 1.0 - np.logspace(-5, 0, 20)
"""Momenta and decays that are tried, those of the paper."""

SGD_LRS, LRS = np.logspace(-5, 0.5, 100), np.logspace(-8, 1, 100)[34:]
"""Learning rates of the authors' notebook, those of momentum and of averages from 1e-5 on. With the notebook's smaller
ones momentum at a batch size of 4 and a target of 0.01 takes 1,333,442 steps in place of 1,499,783."""

CUSHION = 1e-8
"""What the notebook adds to a denominator of SGD."""

_STRIDE, _OPEN = math.log(4.0), 50.0
"""Of the search for a critical batch size; the log of steps over twice the fewest, where no setting gets there."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One optimizer at one batch size.

    Attributes:
        optimizer: a name of :data:`OPTIMIZERS`.
        momentum: as given; ``None`` where it is tuned or there is none.
        ema: decay of the average, as given; ``None`` where it is tuned or there is none.
        power: exponent p of the preconditioner ``h^-p``.
        batch_size: examples per step.
        steps: to the target; ``None`` where no setting reaches it.
        best_lr: learning rate with the fewest steps; the first of several pieces.
        best_momentum: momentum, or decay of the average, with the fewest steps.
        best_growth: of ``growth``, the last batch size over the first, with the fewest steps.
    """

    optimizer: str
    momentum: float | None
    ema: float | None
    power: float
    batch_size: float
    steps: float | None
    best_lr: float | None
    best_momentum: float | None
    best_growth: float | None = None


def curve(
    model: NoisyQuadratic,
    optimizer: str,
    target: float,
    batch_sizes: Sequence[float],
    *,
    momentum: float | None = None,
    power: float = 0.0,
    reference: bool = False,
) -> Iterator[Row]:
    """Steps to target over batch sizes.

    Args:
        model: the noisy quadratic.
        optimizer: a name of :data:`OPTIMIZERS`.
        target: expected loss to reach.
        batch_sizes: examples per step.
        momentum: momentum or decay of the average; ``None`` to tune it at every batch size.
        power: exponent of the preconditioner.
        reference: the conventions of the authors' notebook: its grids of learning rates, and the last step that misses
            the target, at least 1, with its 1e-8 in a denominator of SGD. Otherwise the learning rate is the best of
            all, and steps are the first step at or below the target.

    Raises:
        ValueError: if there is no such optimizer, or a value is outside its domain.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no optimizer {optimizer!r} on the quadratic: there are {', '.join(OPTIMIZERS)}")
    if not target > 0.0:
        raise ValueError(f"the target must be above 0, got {target}")
    plain, averages = (OPTIMIZERS[optimizer] == method for method in ("sgd", "averaged"))
    for batch_size in batch_sizes:
        if not 0.0 < batch_size < math.inf:
            raise ValueError(f"batch sizes must be finite and above 0, got {batch_size}")
        best, growth = _best(model, optimizer, target, batch_size, momentum, power, reference)
        steps = None if best is None else math.ceil(best.steps)
        yield Row(
            optimizer=optimizer,
            momentum=None if plain or averages else momentum,
            ema=momentum if averages else None,
            power=power,
            batch_size=batch_size,
            steps=max(steps - 1, 1 if plain else 0) if reference and steps is not None else steps,
            best_lr=None if best is None else best.lr,
            best_momentum=None if best is None or plain else best.momentum,
            best_growth=growth,
        )


def _best(
    model: NoisyQuadratic,
    optimizer: str,
    target: float,
    batch_size: float,
    momentum: float | None,
    power: float,
    reference: bool,
) -> tuple[Best | None, float | None]:
    """The best settings at one batch size, which may be infinite, and the growth of ``growth``."""
    method = OPTIMIZERS[optimizer]
    plain = method == "sgd"
    momenta = [0.0] if plain else MOMENTA if momentum is None else [momentum]
    if optimizer == "pieces":
        pieces = best_pieces(model, target, batch_size, PIECES, power=power)
        return Best(steps=pieces.steps, lr=float(pieces.lrs[0]), momentum=0.0) if pieces else None, None
    if optimizer == "growth":
        grown = best_growth(model, target, batch_size, PIECES, power=power)
        return (Best(steps=grown.steps, lr=grown.lr, momentum=0.0), grown.growth) if grown else (None, None)
    if reference:
        grid, cushion = (SGD_LRS, CUSHION) if plain else (LRS, 0.0)
        (best,) = best_settings(model, method, target, [batch_size], grid, momenta, power=power, cushion=cushion)
        return best, None
    largest = model.largest_lr(power)
    lrs = largest * np.logspace(-10, 0.3, 200) if math.isfinite(largest) else np.ones(1)
    (best,) = best_settings(model, method, target, [batch_size], lrs, momenta, power=power)
    if best is not None and best.steps > 0:
        best = tuned(model, method, target, batch_size, best.momentum, power=power) or best
    return best, None


@dataclass(frozen=True, kw_only=True)
class CurveSummary:
    """What a curve is known to have, with no form fitted to it.

    Attributes:
        min_steps: to the target without noise, the limit of large batch sizes.
        batch_size: at which a run takes twice as many; ``None`` where there is no noise.
    """

    min_steps: float
    batch_size: float | None


def critical(
    model: NoisyQuadratic,
    optimizer: str,
    target: float,
    *,
    momentum: float | None = None,
    power: float = 0.0,
    reference: bool = False,
    near: float = 1.0,
) -> CurveSummary | None:
    """``S_min`` and the batch size of twice as many steps, to a thousandth; arguments as of :func:`curve`.

    Args:
        near: batch size around which it is looked for first.

    Returns:
        ``None`` where the target is not reached without noise either.
    """
    least, _ = _best(model, optimizer, target, math.inf, momentum, power, reference)
    if least is None or least.steps <= 0:
        return None
    if model.noise_trace == 0.0:
        return CurveSummary(min_steps=least.steps, batch_size=None)

    @functools.cache
    def excess(log_size: float) -> float:
        best, _ = _best(model, optimizer, target, math.exp(log_size), momentum, power, reference)
        return math.log(best.steps / (2.0 * least.steps)) if best else _OPEN

    low = high = math.log(near)
    while excess(low) < 0.0:
        high, low = low, low - _STRIDE
    while excess(high) >= 0.0:
        low, high = high, high + _STRIDE
    return CurveSummary(min_steps=least.steps, batch_size=math.exp(brentq(excess, low, high, xtol=1e-3)))
