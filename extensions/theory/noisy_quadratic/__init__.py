"""The noisy quadratic of Zhang et al. (2019, arXiv:1907.04164): how many steps training on it takes, in closed form."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import bisect, brentq

from analysis.estimate.definitions.least_product import SHARE, SPAN
from analysis.quantities import OPEN, Interval
from extensions.theory.noisy_quadratic.model import METHODS, Modes, NoisyQuadratic, modes_of
from extensions.theory.noisy_quadratic.search import Best, best_settings, passages, tuned

__all__ = [
    "METHODS",
    "OPTIMIZERS",
    "Best",
    "Modes",
    "NoisyQuadratic",
    "Row",
    "best_settings",
    "critical",
    "curve",
    "modes_of",
    "notebook_curve",
    "passages",
    "tuned",
]


OPTIMIZERS = {"sgd": "sgd", "momentum": "heavy_ball", "nesterov": "nesterov", "ema": "averaged"}
"""Names of the optimizers, and the method of each; momentum and the decay of the average are tuned at every batch size
unless given."""

# Momenta and decays that are tried, as in the paper
MOMENTA = 1.0 - np.logspace(-5, 0, 20)

# Learning rates of the authors' notebook (repository gd-zhang/noisy-quadratic-model); the grid of momentum and
# averaging begins above 1e-5, and omits a point that exceeds 1e-5 at most by rounding.
SGD_LRS, LRS = np.logspace(-5, 0.5, 100), np.logspace(-8, 1, 100)[34:]

CUSHION = 1e-8  # Number that the notebook adds to ``1 - rho`` of plain SGD
_STRIDE = math.log(2.0)  # Stride in ln B of the search for the critical batch size
_SURELY = 10.0  # Stands for infinity in a search for a sign


@dataclass(frozen=True, kw_only=True)
class Row:
    """One optimizer at one batch size.

    Attributes:
        optimizer: a name in :data:`OPTIMIZERS`.
        momentum: the given momentum; ``None`` if it is tuned or there is none.
        ema: the given decay of the average; ``None`` if it is tuned or there is none.
        power: exponent p of the preconditioner ``h^-p``.
        batch_size: examples per step.
        steps: steps to the target; ``None`` if no setting reaches it.
        best_lr: learning rate with the fewest steps.
        best_momentum: momentum, or decay of the average, with the fewest steps.
    """

    optimizer: str
    momentum: float | None
    ema: float | None
    power: float
    batch_size: float
    steps: float | None
    best_lr: float | None
    best_momentum: float | None


def curve(
    model: NoisyQuadratic,
    optimizer: str,
    target: float,
    batch_sizes: Sequence[float],
    *,
    momentum: float | None = None,
    power: float = 0.0,
) -> Iterator[Row]:
    """Yield the steps to an expected loss of ``target`` over batch sizes at the best learning rate: the first step at
    or below it. ``momentum``, or the decay of the average, is tuned at every batch size if it is ``None``.

    Raises:
        ValueError: if :data:`OPTIMIZERS` has no such optimizer, or a value is outside its domain.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no optimizer {optimizer!r} on the quadratic: there are {', '.join(OPTIMIZERS)}")
    if not target > 0.0:
        raise ValueError(f"the target must be above 0, got {target}")
    for batch_size in batch_sizes:
        if not 0.0 < batch_size < math.inf:
            raise ValueError(f"batch sizes must be finite and above 0, got {batch_size}")
        best = _best(model, optimizer, target, batch_size, momentum, power)
        yield _row(optimizer, power, batch_size, best and replace(best, steps=math.ceil(best.steps)), momentum)


def notebook_curve(
    optimizer: str, target: float, batch_sizes: Sequence[float], *, dimension: int, power: float = 0.0
) -> list[Row]:
    """Compute :func:`curve` with the search of the authors' notebook: curvatures in 100 bins, on its grids.

    The notebook returns the last step that misses the target; here it is the first that reaches it.

    Raises:
        ValueError: if the notebook has no such optimizer.
    """
    if optimizer not in ("sgd", "momentum", "ema"):
        raise ValueError(f"the notebook has no optimizer {optimizer!r}: it has sgd, momentum and ema")
    grids = (SGD_LRS, (0.0,)) if optimizer == "sgd" else (LRS, MOMENTA)
    model, method = NoisyQuadratic.binned(dimension), OPTIMIZERS[optimizer]
    bests = best_settings(model, method, target, batch_sizes, *grids, power=power, cushion=CUSHION)
    return [_row(optimizer, power, size, best) for size, best in zip(batch_sizes, bests, strict=True)]


def _row(optimizer: str, power: float, batch_size: float, best: Best | None, given: float | None = None) -> Row:
    """Return the row of the ``best`` settings, where ``given`` is the momentum or decay if it was not tuned."""
    method = OPTIMIZERS[optimizer]
    return Row(
        optimizer=optimizer,
        momentum=given if method in ("heavy_ball", "nesterov") else None,
        ema=given if method == "averaged" else None,
        power=power,
        batch_size=batch_size,
        steps=best.steps if best else None,
        best_lr=best.lr if best else None,
        best_momentum=best.momentum if best and method != "sgd" else None,
    )


def _best(
    model: NoisyQuadratic, optimizer: str, target: float, batch_size: float, momentum: float | None, power: float
) -> Best | None:
    """Return the best settings at one batch size, which may be infinite."""
    method = OPTIMIZERS[optimizer]
    momenta = [0.0] if method == "sgd" else MOMENTA if momentum is None else [momentum]
    largest = model.largest_lr(power)
    lrs = largest * np.logspace(-10, 0.3, 200) if math.isfinite(largest) else np.ones(1)
    (best,) = best_settings(model, method, target, [batch_size], lrs, momenta, power=power)
    if best is not None and best.steps > 0:
        best = tuned(model, method, target, batch_size, best.momentum, power=power) or best
    return best


def critical(
    model: NoisyQuadratic,
    optimizer: str,
    target: float,
    *,
    momentum: float | None = None,
    power: float = 0.0,
    near: float = 1.0,
) -> tuple[float | None, float | None, Interval]:
    """Return what is known of a :func:`curve` without fitting a form, batch sizes to some thousandths.

    Args:
        near: batch size around which the search for the batch size starts; the others as for :func:`curve`.

    Returns:
        ``S_min``, the steps without noise and limit of large batch sizes, ``None`` if the target is not reached even
        so; the batch size around which steps times examples are least from half to twice it, ``None`` also if there is
        no noise; and the range around it in which they are at most :data:`SHARE` larger than there.
    """
    least = _best(model, optimizer, target, math.inf, momentum, power)
    if least is None or least.steps <= 0:
        return None, None, OPEN
    if model.noise_trace == 0.0:
        return least.steps, None, OPEN

    @functools.cache
    def product(log_size: float) -> float:
        best = _best(model, optimizer, target, near * math.exp(log_size), momentum, power)
        return log_size + 2 * math.log(best.steps) if best else math.inf

    def rise(log_size: float) -> float:
        double, half = product(log_size + math.log(SPAN)), product(log_size - math.log(SPAN))
        return -_SURELY if math.isinf(half) else min(double - half, _SURELY)

    log_size = 0.0
    while rise(log_size) < 0:
        log_size += _STRIDE
    while rise(log_size) > 0:
        log_size -= _STRIDE
    log_size = float(brentq(rise, log_size, log_size + _STRIDE, xtol=2e-3))
    most = product(log_size) + math.log1p(SHARE)

    def end(side: int) -> float:
        far = next(stride for stride in itertools.count(1) if product(log_size + side * stride * _STRIDE) > most)
        away = bisect(lambda away: product(log_size + side * away) - most, 0.0, far * _STRIDE, xtol=5e-3)
        return near * math.exp(log_size + side * away)

    return least.steps, near * math.exp(log_size), (end(-1), end(1))
