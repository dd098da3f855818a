r"""Noise scales of a known gradient distribution, in closed form.

A single example's gradient is the true gradient G plus noise with independent entries of variance c, as on the noisy
quadratic, where :math:`G = h\theta` and H = diag(h). Every truth is ``(signal, noise)`` in the convention of
:mod:`cbs.noise_scale.geometries`, and the noise scale ``(noise / signal) ** exponent`` in examples. The rest says what
an estimate expects to read instead where it is biased, for Gaussian noise.
"""

import math

import numpy as np


def l2(gradient: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    r""":math:`|G|^2` and :math:`tr\,\Sigma`; exponent 1 (McCandlish et al. 2018, equation 2.9)."""
    return weighted(gradient, variance, np.ones_like(gradient))


def weighted(gradient: np.ndarray, variance: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    r""":math:`G^\top W G` and :math:`tr(W\Sigma)` with W = diag(``weights``); exponent 1.

    The preconditioned noise scale with the preconditioner as W, and the Hessian-weighted one (McCandlish et al. 2018,
    equation 2.8) with the curvature.
    """
    return float((weights * gradient**2).sum()), float((weights * variance).sum())


def l1(gradient: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    r""":math:`\|G\|_1` and :math:`\|\sigma\|_1`; exponent 2 (Naganuma et al., arXiv 2602.03001)."""
    return float(np.abs(gradient).sum()), float(np.sqrt(variance).sum())


def nuclear(gradient: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    r""":math:`\|G\|_{S_1}` and :math:`tr\,C^{1/2}` of one matrix; exponent 2 (Naganuma et al., arXiv 2602.03001).

    Independent entries have a diagonal covariance of rows on the smaller side, with the sums of their variances.
    """
    along = 1 if gradient.shape[0] <= gradient.shape[1] else 0
    singular = np.linalg.svd(gradient, compute_uv=False)
    return float(singular.sum()), float(np.sqrt(variance.sum(axis=along)).sum())


def l1_signal(gradient: np.ndarray, variance: np.ndarray, batch_size: float) -> float:
    r""":math:`E\|g\|_1` of a batch: every entry has the mean of a folded normal.

    :math:`E|g_i| = s\sqrt{2/\pi}\,e^{-G_i^2/2s^2} + |G_i|\,erf(|G_i|/s\sqrt 2)` with :math:`s^2 = c_i/B`.
    """
    size, spread = np.abs(gradient), np.sqrt(variance / batch_size)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(size > 0, size / spread, 0.0)
    error = np.vectorize(math.erf, otypes=[float])(score / math.sqrt(2.0))
    return float((spread * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * score**2) + size * error).sum())


def nuclear_signal_of_noise(shape: tuple[int, int], variance: float, batch_size: float) -> float:
    r""":math:`E\|g\|_{S_1}` of a batch without a true gradient, its noise alike in all entries of the matrix.

    The limit of large matrices; for m rows, at most as many as columns, too large by a fraction of up to 0.16/m.
    """
    rows, columns = sorted(shape)
    return rows * math.sqrt(columns * variance / batch_size) * root_shrinkage(rows / columns)


def root_shrinkage(ratio: float) -> float:
    r"""Mean root of a Marchenko-Pastur variable of unit mean: :math:`E\,tr\,\hat C^{1/2}/tr\,C^{1/2}` for C = I.

    :math:`{}_2F_1(\tfrac12, -\tfrac12; 2; \gamma)`: :math:`8/3\pi` at 1, about :math:`1 - \gamma/8` for small ones. The
    limit of large matrices; for m rows too large by a fraction of up to 0.16/m.

    Args:
        ratio: :math:`\gamma`, rows over samples, from 0 to 1.
    """
    order = np.arange(2000.0)
    factors = ratio * (order + 0.5) * (order - 0.5) / ((order + 2.0) * (order + 1.0))
    return float(1.0 + np.cumprod(factors).sum())
