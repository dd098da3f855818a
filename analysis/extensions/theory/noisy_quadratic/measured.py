r"""The noisy quadratic of a measured spectrum.

The expected losses of every method here are linear in two measures along the curvature: the start's,
:math:`\sum_i s_i \delta_{h_i}`, and the noise's, :math:`\sum_i c_i \delta_{h_i}`. How many coordinates there are does
not enter. Both measures come from Lanczos as a few points each, so the quadratic has a coordinate for every point of
the start, without noise, and one for every point of the noise, without start. With
:math:`g_i = h_i \theta_i` the gradient that the quadratic has at the start, :math:`s_i = g_i^2 / h_i^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.extensions.theory.noisy_quadratic.model import NoisyQuadratic
from cbs.spectrum.record import SpectrumSample

RESOLVED = 1e-6
"""Curvatures below this part of the largest count as 0: products in single precision do not tell them from it."""

MOST = 0.5
"""Largest part of the gradient, or of the noise, that may lie along curvatures that are not positive."""


@dataclass(frozen=True, kw_only=True)
class MeasuredQuadratic:
    """A noisy quadratic in the unit of a workload's metric.

    Attributes:
        model: the quadratic; its losses are in excess of ``floor``.
        floor: metric at the minimum of the quadratic.
        negative: part of the squared gradient or of the noise, whichever is larger, along negative curvatures; it is
            left out.
        flat: likewise along curvatures that count as 0.
        hidden: part of the start's excess loss that noise hides, weights below 0; it is left out.
    """

    model: NoisyQuadratic
    floor: float
    negative: float
    flat: float
    hidden: float


def measured_quadratic(samples: Sequence[SpectrumSample], floor: float | None = None) -> MeasuredQuadratic:
    """The quadratic of measurements at one point, which count alike.

    Args:
        samples: at least one.
        floor: metric at the minimum. ``None`` for that of the quadratic itself, the metric at the point minus
            ``1/2 g' H^-1 g`` of the gradient there; otherwise the start is scaled so that the loss before training is
            the metric there.

    Raises:
        ValueError: if nothing curves, nothing is left of the gradient, negative curvature dominates, or the floor is
            not below the metric before training.
    """
    parts = {kind: _together(samples, kind) for kind in ("start", "gradient", "noise")}
    largest = max(float(np.abs(h).max()) for h, _ in parts.values())
    least = RESOLVED * largest
    if not largest > 0.0:
        raise ValueError("the curvature is 0 along the gradient and its noise: the loss is no quadratic there")
    negative, flat = (
        max(_share(*parts[kind], *ends) for kind in ("start", "noise")) for ends in ((-np.inf, -least), (-least, least))
    )
    if negative > MOST:
        raise ValueError(
            f"negative curvature dominates: {negative:.0%} of the gradient or of its noise lies along it, and a "
            "quadratic with negative curvature has no floor; use the Gauss-Newton matrix"
        )
    if flat > MOST:
        raise ValueError(
            f"{flat:.0%} of the gradient or of its noise lies along curvatures of 0: the loss has no minimum there"
        )
    kept = {kind: (h[h > least], weight[h > least]) for kind, (h, weight) in parts.items()}
    (h, squares), (along, noise) = kept["start"], kept["noise"]
    excess = 0.5 * squares / h
    total = float(excess.clip(min=0.0).sum())
    if not total > 0.0:
        raise ValueError("the gradient is 0 along all curvatures, or noise hides it: there is nothing to train")
    own = float(np.mean([sample.value for sample in samples])) - 0.5 * float(
        (kept["gradient"][1] / kept["gradient"][0]).sum()
    )
    scale = 1.0
    if floor is not None:
        height = float(np.mean([sample.start_value for sample in samples])) - floor
        if not height > 0.0:
            raise ValueError(f"the floor {floor:g} is not below the metric before training, {height + floor:.4g}")
        scale = height / total
    zeros = np.zeros_like
    model = NoisyQuadratic(
        curvature=np.concatenate([h, along]),
        noise=np.concatenate([zeros(h), noise]),
        start=np.concatenate([scale * squares.clip(min=0.0) / h**2, zeros(along)]),
        count=np.ones(len(h) + len(along)),
    )
    return MeasuredQuadratic(
        model=model,
        floor=own if floor is None else floor,
        negative=negative,
        flat=flat,
        hidden=float(-excess.clip(max=0.0).sum() / total),
    )


def _together(samples: Sequence[SpectrumSample], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The measure of a kind averaged over samples."""
    parts = [sample.of(kind) for sample in samples]
    return np.concatenate([h for h, _ in parts]), np.concatenate([weight / len(parts) for _, weight in parts])


def _share(h: np.ndarray, weight: np.ndarray, low: float, high: float) -> float:
    size = np.abs(weight)
    return float(size[(h >= low) & (h < high)].sum() / size.sum()) if size.any() else 0.0
