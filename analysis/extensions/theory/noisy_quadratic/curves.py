"""Steps to target over batch sizes on the noisy quadratic, as a sweep would measure them, for named optimizers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.extensions.theory.noisy_quadratic.model import NoisyQuadratic
from analysis.extensions.theory.noisy_quadratic.search import Best, best_settings, tuned

OPTIMIZERS = {"sgd": "sgd", "momentum": "heavy_ball", "nesterov": "nesterov", "ema": "averaged"}
"""Names of the optimizers, and the method of each; momentum and the decay of the average are tuned at every batch size
unless given."""

MOMENTA = 1.0 - np.logspace(-5, 0, 20)
"""Momenta and decays that are tried, as in the paper."""

SGD_LRS, LRS = np.logspace(-5, 0.5, 100), np.logspace(-8, 1, 100)[34:]
"""Learning rates of the authors' notebook (repository gd-zhang/noisy-quadratic-model); the grid of momentum and
averaging begins above 1e-5, and omits a point that exceeds 1e-5 at most by rounding."""

CUSHION = 1e-8
"""Number that the notebook adds to ``1 - rho`` of plain SGD."""

_STRIDE = math.log(2.0)
"""First stride in ln B of the search for the least product, and four times the last."""


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
    """Yield the steps to target over batch sizes at the best learning rate: the first step at or below the target.

    Args:
        model: the noisy quadratic.
        optimizer: a name of :data:`OPTIMIZERS`.
        target: expected loss to reach.
        batch_sizes: examples per step.
        momentum: momentum or decay of the average; ``None`` to tune it at every batch size.
        power: exponent of the preconditioner.

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
        best = _best(model, optimizer, target, batch_size, momentum, power)
        yield Row(
            optimizer=optimizer,
            momentum=None if plain or averages else momentum,
            ema=momentum if averages else None,
            power=power,
            batch_size=batch_size,
            steps=None if best is None else math.ceil(best.steps),
            best_lr=None if best is None else best.lr,
            best_momentum=None if best is None or plain else best.momentum,
        )


def notebook_curve(
    optimizer: str, target: float, batch_sizes: Sequence[float], *, dimension: int, power: float = 0.0
) -> list[Row]:
    """Compute :func:`curve` with the search of the authors' notebook: curvatures in 100 bins, on its grids.

    The notebook returns the last step that misses the target; here it is the first that reaches it.

    Args:
        optimizer: sgd, momentum or ema.
        target: expected loss to reach.
        batch_sizes: examples per step.
        dimension: number of parameters.
        power: exponent of the preconditioner.

    Raises:
        ValueError: if the notebook has no such optimizer.
    """
    if optimizer not in ("sgd", "momentum", "ema"):
        raise ValueError(f"the notebook has no optimizer {optimizer!r}: it has sgd, momentum and ema")
    plain = optimizer == "sgd"
    bests = best_settings(
        NoisyQuadratic.binned(dimension),
        OPTIMIZERS[optimizer],
        target,
        batch_sizes,
        *((SGD_LRS, (0.0,)) if plain else (LRS, MOMENTA)),
        power=power,
        cushion=CUSHION,
    )
    return [
        Row(
            optimizer=optimizer,
            momentum=None,
            ema=None,
            power=power,
            batch_size=batch_size,
            steps=None if best is None else best.steps,
            best_lr=None if best is None else best.lr,
            best_momentum=None if best is None or plain else best.momentum,
        )
        for batch_size, best in zip(batch_sizes, bests, strict=True)
    ]


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


@dataclass(frozen=True, kw_only=True)
class CurveSummary:
    """Quantities of a curve that are known without fitting a form.

    Attributes:
        min_steps: steps to the target without noise, the limit of large batch sizes.
        batch_size: batch size at which steps times examples are least; ``None`` if there is no noise.
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
    near: float = 1.0,
) -> CurveSummary | None:
    """Return ``S_min`` and the batch size of least steps times examples, to some thousandths; arguments as for
    :func:`curve`.

    Args:
        near: batch size around which the search starts.

    Returns:
        The summary; ``None`` if the target is not reached even without noise.
    """
    least = _best(model, optimizer, target, math.inf, momentum, power)
    if least is None or least.steps <= 0:
        return None
    if model.noise_trace == 0.0:
        return CurveSummary(min_steps=least.steps, batch_size=None)

    @functools.cache
    def product(place: float) -> float:
        best = _best(model, optimizer, target, near * math.exp(place), momentum, power)
        return place + 2 * math.log(best.steps) if best else math.inf

    place, stride = 0.0, _STRIDE
    while True:
        below, here, above = (product(place + side * stride) for side in (-1, 0, 1))
        if above < here or math.isinf(here):
            place += stride
        elif below < here:
            place -= stride
        elif stride > _STRIDE / 4:
            stride /= 2
        else:
            # the vertex of the parabola through the three
            place += stride * (below - above) / (2 * (below - 2 * here + above))
            return CurveSummary(min_steps=least.steps, batch_size=near * math.exp(place))
