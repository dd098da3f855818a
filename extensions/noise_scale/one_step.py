r"""The noise scale by its definition: from what the best step saves at every batch size.

The saving is fitted by :math:`\Delta L_{opt}(B) = \Delta L_{max}/(1 + B_{noise}/B)` (McCandlish et al. 2018, arXiv
1812.06162, equation 2.7). The same :math:`B_{noise} = tr(H\Sigma)/G^\top H G` follows from the curvature along the
gradients, and the simple one, :math:`tr(\Sigma)/|G|^2`, from their norms; both by the unbiased combinations of the
smallest and the largest batch size (appendix A.1). Intervals resample the gradients of every batch size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.formatting import shown
from analysis.quantities import Array, Quantity

_GRID = 400  # Number of noise scales that are tried in a fit
_BEYOND = 100.0  # Factor by which the tried noise scales extend beyond the batch sizes


@dataclass(frozen=True, kw_only=True)
class BestStep:
    """The best step at one batch size.

    Attributes:
        batch_size: examples per step.
        length: length of the step along the gradient.
        saved: decrease of the loss.
        at_edge: whether it is the shortest or longest that was tried, so that the saving is a lower bound.
    """

    batch_size: int
    length: Quantity
    saved: Quantity
    at_edge: bool


@dataclass(frozen=True, kw_only=True)
class OneStepTest:
    """Result of :func:`one_step_test`; noise scales are in examples.

    Attributes:
        about: description of what was measured.
        points: the best step at every batch size.
        most: decrease of the loss by the best step with the full gradient.
        noise_scale: noise scale from the fit to the savings; no value if it is outside the range that can be
            determined.
        hessian_noise_scale: noise scale from the curvature along the gradients.
        simple_noise_scale: noise scale from the norms of the gradients.
        confidence: confidence of the intervals.
        notes: remarks.
    """

    about: dict[str, Any]
    points: tuple[BestStep, ...]
    most: Quantity
    noise_scale: Quantity
    hessian_noise_scale: Quantity
    simple_noise_scale: Quantity
    confidence: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return shown(self)


def one_step_test(
    about: dict[str, Any], batch_sizes: Sequence[int], lengths: Sequence[Array], changes: Sequence[Array],
    sq_norms: Array, curvatures: Array, examples: int, *, confidence: float = 0.95, resamples: int = 1000,
) -> OneStepTest:  # fmt: skip
    """Estimate the noise scales from the fields of :class:`extensions.noise_scale.one_step_gain.OneStep`.

    Args:
        about: description of what was measured: workload, optimizer and the like, unit of an example.
    """
    sizes, replicates = np.array(batch_sizes, dtype=float), len(sq_norms[0])
    rng = np.random.default_rng(0)
    weights = np.ones((1 + resamples, len(sizes), replicates)) / replicates
    weights[1:] = rng.multinomial(replicates, np.full(replicates, 1 / replicates), (resamples, len(sizes))) / replicates
    found = [_best(steps, weights[:, index] @ changes[index]) for index, steps in enumerate(lengths)]
    length, saved = (np.stack([each[part] for each in found], axis=1) for part in (0, 1))
    edges = [bool(np.ravel(each[2])[0]) for each in found]
    most, noise = _fitted(sizes, saved)
    points = tuple(
        BestStep(
            batch_size=int(size), length=Quantity.of_draws(length[:, index], confidence),
            saved=Quantity.of_draws(saved[:, index], confidence), at_edge=edges[index],
        )
        for index, size in enumerate(sizes)
    )  # fmt: skip
    simple, hessian = (_of_ends(sizes, np.einsum("rmn,mn->rm", weights, each)) for each in (sq_norms, curvatures))
    notes = [
        f"at batch size {point.batch_size} the best step lies beyond those tried" for point in points if point.at_edge
    ]
    value = Quantity.of_draws(simple, confidence).value
    if value is not None and value > examples / 4:
        notes.append(f"{examples:,} examples to measure losses on are few for a noise scale of {value:.3g}: take more")
    return OneStepTest(
        about=about, points=points, most=Quantity.of_draws(most, confidence),
        noise_scale=_within(noise, confidence), hessian_noise_scale=_within(hessian, confidence),
        simple_noise_scale=_within(simple, confidence), confidence=confidence, notes=tuple(notes),
    )  # fmt: skip


def _best(lengths: Array, means: Array) -> tuple[Array, Array, Any]:
    """Return length and saving of the best step of every row ``[R, J]``, by the parabola through the best one tried and
    its neighbours, and whether that is the shortest or longest."""
    best = means.argmin(axis=1)
    at = np.clip(best, 1, len(lengths) - 2)
    rows = np.arange(len(means))
    x = np.stack([lengths[at + shift] for shift in (-1, 0, 1)])
    y = np.stack([means[rows, at + shift] for shift in (-1, 0, 1)])
    first, second = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (second - first) / (x[2] - x[0])
    edge = np.asarray((best != at) | (bend <= 0))
    turn = (x[0] + x[1]) / 2 - first / (2 * np.where(edge, 1.0, bend))
    saved = -(y[0] + first * (turn - x[0]) + bend * (turn - x[0]) * (turn - x[1]))
    return np.where(edge, lengths[best], turn), np.where(edge, -means[rows, best], saved), edge


def _fitted(sizes: Array, saved: Array) -> tuple[Array, Array]:
    """Return the largest saving of a step and the noise scale for every row, by weighted least squares in logarithms:
    NaN if a saving is not positive; a noise scale of 0 or infinity if an end of the grid fits best."""
    known = np.asarray((saved > 0).all(axis=1))
    logs = np.log(np.where(saved > 0, saved, 1.0))
    spread = np.var(logs[1:][known[1:]], axis=0) if known[1:].sum() > 1 else np.ones(len(sizes))
    weights = 1.0 / np.maximum(spread, 1e-12)
    weights /= weights.sum()
    grid = np.geomspace(sizes[0] / _BEYOND, sizes[-1] * _BEYOND, _GRID)
    bent = np.log1p(grid[:, None] / sizes)
    tops = (logs @ weights)[:, None] + (bent @ weights)[None]
    # sum w (log + bent - top)^2 = sum w (log + bent)^2 - top^2
    square = (logs**2 @ weights)[:, None] + 2 * (logs * weights) @ bent.T + (bent**2 @ weights)[None]
    misfit = square - tops**2
    at = np.clip(misfit.argmin(axis=1), 1, _GRID - 2)
    rows = np.arange(len(saved))
    left, middle, right = (misfit[rows, at + shift] for shift in (-1, 0, 1))
    bend = left - 2 * middle + right
    shift = np.clip(np.where(bend > 0, (left - right) / np.where(bend > 0, 2 * bend, 1.0), 0.0), -1, 1)
    noise = np.exp(np.log(grid[at]) + shift * np.log(grid[1] / grid[0]))
    ends = misfit.argmin(axis=1)
    noise = np.where(ends == 0, 0.0, np.where(ends == _GRID - 1, np.inf, noise))
    return np.where(known, np.exp(tops[rows, at]), np.nan), np.where(known, noise, np.nan)


def _of_ends(sizes: Array, moments: Array) -> Array:
    """Return noise over signal from moments that are signal + noise/B at the smallest and the largest batch size,
    ``[R]``; NaN if one is not positive."""
    small, big = moments[:, 0], moments[:, -1]
    signal = (sizes[-1] * big - sizes[0] * small) / (sizes[-1] - sizes[0])
    noise = (small - big) / (1 / sizes[0] - 1 / sizes[-1])
    return np.where((signal > 0) & (noise > 0), noise / np.where(signal > 0, signal, 1.0), np.nan)


def _within(rows: Array, confidence: float) -> Quantity:
    """Return a noise scale with its interval; resamples without signal count as infinitely much noise, so the end is
    open."""
    rows = np.where(np.isnan(rows), np.inf, rows)
    return Quantity.open_ended(np.where(rows > 0, rows, -np.inf), confidence)
