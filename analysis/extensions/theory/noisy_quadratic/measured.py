r"""The noisy quadratic of a measured spectrum.

The expected losses of all methods here are linear in two measures along the curvature: that of the start, :math:`\sum_i
s_i \delta_{h_i}`, and that of the noise, :math:`\sum_i c_i \delta_{h_i}`. The number of coordinates does not enter. The
Lanczos algorithm gives both measures as a few points each, so the quadratic has a coordinate for every point of the
start, without noise, and one for every point of the noise, without start. With :math:`g_i = h_i \theta_i` the gradient
that the quadratic has at the start, :math:`s_i = g_i^2 / h_i^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.extensions.theory.noisy_quadratic.model import NoisyQuadratic
from cbs.spectrum.record import SpectrumSample

RESOLVED = 1e-6
"""Curvatures below this fraction of the largest count as 0, because single precision cannot distinguish them from 0."""

MOST = 0.5
"""Largest fraction of the gradient, or of the noise, that may lie along curvatures that are not positive."""


@dataclass(frozen=True, kw_only=True)
class MeasuredQuadratic:
    """A noisy quadratic in the unit of a workload's metric.

    Attributes:
        model: the quadratic; its losses are relative to ``floor``.
        floor: metric at the minimum of the quadratic.
        negative: fraction of the squared gradient or of the noise, whichever is larger, along negative curvatures,
            which is left out.
        flat: fraction along curvatures that count as 0, which is left out.
        hidden: fraction of the start's excess loss that noise hides (negative weights), which is left out.
    """

    model: NoisyQuadratic
    floor: float
    negative: float
    flat: float
    hidden: float


def measured_quadratic(samples: Sequence[SpectrumSample], floor: float | None = None) -> MeasuredQuadratic:
    """Return the quadratic of measurements at one point, which are averaged with equal weights.

    Args:
        samples: the measurements, at least one.
        floor: metric at the minimum. ``None`` for that of the quadratic itself, the metric at the point minus ``1/2 g'
            H^-1 g`` for the gradient there; otherwise the start is scaled so that the loss before training equals the
            metric there.

    Raises:
        ValueError: if all curvatures are 0, nothing is left of the gradient, negative curvature dominates, or the floor
            is not below the metric before training.
    """
    parts = {kind: _together(samples, kind) for kind in ("start", "gradient", "noise")}
    largest = max(float(np.abs(h).max()) for h, _ in parts.values())
    least = RESOLVED * largest
    if not largest > 0.0:
        raise ValueError("the curvature is 0 along the gradient and its noise: the loss is not a quadratic there")
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
    """Return the measure of a kind averaged over samples."""
    parts = [sample.of(kind) for sample in samples]
    return np.concatenate([h for h, _ in parts]), np.concatenate([weight / len(parts) for _, weight in parts])


def _share(h: np.ndarray, weight: np.ndarray, low: float, high: float) -> float:
    size = np.abs(weight)
    return float(size[(h >= low) & (h < high)].sum() / size.sum()) if size.any() else 0.0
