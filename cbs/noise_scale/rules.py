r"""From a noise scale to a batch size: what one step is worth in theory.

With the best learning rate a step on a batch of B examples makes a share :math:`\kappa(B)` of a noiseless step's
progress. The second-order model of SGD has (McCandlish et al. 2018, equations 2.6 and 2.7)

.. math:: \kappa = \frac{1}{1 + \mathcal B/B}, \qquad \eta/\eta_{max} = \frac{1}{1 + \mathcal B/B}

and sign and spectral descent have the lower bound (Naganuma et al., arXiv 2602.03001)

.. math:: \kappa = (1 - \sqrt{\mathcal B/B})^2, \qquad \eta/\eta_{max} = 1 - \sqrt{\mathcal B/B},

both 0 up to :math:`B = \mathcal B`, where it promises nothing. The first belongs to geometries of ``exponent`` 1, the
second to those of ``exponent`` 2. That bound promises most progress per example, a quarter of the best step's, at
:math:`B = 4\mathcal B`; in the first model smaller batches always use examples better. Noise scales and batch sizes are
in examples, numbers or arrays; a noise scale that is NaN or negative, as estimates can be, gives NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cbs.errors import ConfigError


def progress(batch_size: ArrayLike, noise_scale: ArrayLike, *, exponent: int) -> np.ndarray:
    r""":math:`\kappa(B)`, the share of a noiseless step's progress, from 0 to 1.

    Raises:
        ConfigError: if a batch size is not positive, or there is no such exponent.
    """
    return learning_rate_share(batch_size, noise_scale, exponent=exponent) ** _exponent(exponent)


def learning_rate_share(batch_size: ArrayLike, noise_scale: ArrayLike, *, exponent: int) -> np.ndarray:
    r""":math:`\eta(B)/\eta_{max}`, the best learning rate as a share of a noiseless step's, from 0 to 1.

    The latter is :math:`|G|^2/G^\top HG` for SGD, and for unit smoothness :math:`\|G\|_1/d` for sign descent in d
    dimensions and :math:`\|G\|_{S_1}/r` for spectral descent at rank r.

    Raises:
        ConfigError: if a batch size is not positive, or there is no such exponent.
    """
    ratio = _valid(noise_scale) / _positive(batch_size)
    if _exponent(exponent) == 1:
        return 1.0 / (1.0 + ratio)
    return np.maximum(1.0 - np.sqrt(ratio), 0.0)


def batch_size_for_progress(share: ArrayLike, noise_scale: ArrayLike, *, exponent: int) -> np.ndarray:
    r"""The critical batch size at :math:`\kappa`: where a step makes that share of a noiseless step's progress.

    :math:`\kappa/(1-\kappa)\,\mathcal B` for exponent 1 and :math:`\mathcal B/(1-\sqrt\kappa)^2` for exponent 2.

    Args:
        share: :math:`\kappa`, above 0 and below 1.
        noise_scale: in examples.
        exponent: of the geometry.

    Raises:
        ConfigError: if an argument is outside its domain.
    """
    kappa = _open_unit(share, "share of the progress")
    if _exponent(exponent) == 1:
        return kappa / (1.0 - kappa) * _valid(noise_scale)
    return _valid(noise_scale) / (1.0 - np.sqrt(kappa)) ** 2


def batch_size_for_noise(tolerance: ArrayLike, noise_scale: ArrayLike) -> np.ndarray:
    r""":math:`\mathcal B/\theta^2`: where a batch's noise is the fraction :math:`\theta` of the true gradient's norm.

    The norm test :math:`E\|g - G\|^2 \le \theta^2 \|G\|^2` in the Euclidean geometry, where the progress is then
    :math:`\kappa = 1/(1+\theta^2)`, and its analogue in the dual norm elsewhere, with :math:`\kappa = (1-\theta)^2`.

    Args:
        tolerance: :math:`\theta`, above 0 and below 1.
        noise_scale: in examples.

    Raises:
        ConfigError: if the tolerance is outside its domain.
    """
    return _valid(noise_scale) / _open_unit(tolerance, "tolerance theta") ** 2


def _valid(noise_scale: ArrayLike) -> np.ndarray:
    value = np.asarray(noise_scale, dtype=float)
    return np.where(value >= 0, value, np.nan)


def _positive(batch_size: ArrayLike) -> np.ndarray:
    size = np.asarray(batch_size, dtype=float)
    if not (size > 0).all():
        raise ConfigError(f"a batch size must be positive, got {size.tolist()}")
    return size


def _open_unit(value: ArrayLike, what: str) -> np.ndarray:
    share = np.asarray(value, dtype=float)
    if not ((share > 0) & (share < 1)).all():
        raise ConfigError(f"the {what} must be above 0 and below 1, got {share.tolist()}")
    return share


def _exponent(exponent: int) -> int:
    if exponent not in (1, 2):
        raise ConfigError(f"a geometry has exponent 1 or 2, got {exponent}")
    return exponent
