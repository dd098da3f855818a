r"""From a noise scale to a batch size: what one step is worth in theory.

With the best learning rate a step on a batch of B examples makes a share :math:`\kappa(B)` of a noiseless step's
progress. The second-order model of SGD has (McCandlish et al. 2018, equations 2.6 and 2.7)

.. math:: \kappa = \frac{1}{1 + \mathcal B/B}, \qquad \eta/\eta_{max} = \frac{1}{1 + \mathcal B/B}

and sign and spectral descent have the lower bound (Naganuma et al., arXiv 2602.03001)

.. math:: \kappa = (1 - \sqrt{\mathcal B/B})^2, \qquad \eta/\eta_{max} = 1 - \sqrt{\mathcal B/B},

both 0 up to :math:`B = \mathcal B`, where it promises nothing. The first belongs to geometries of ``exponent`` 1, the
second to those of ``exponent`` 2. Noise scales and batch sizes are in examples, numbers or arrays; a noise scale that
is NaN or negative, as estimates can be, gives NaN.
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


def batch_size_of_best_examples(noise_scale: ArrayLike) -> np.ndarray:
    r""":math:`4\mathcal B`, where the bound for exponent 2 promises most progress per example: a quarter per step.

    For exponent 1 there is none: smaller batches always use examples better.
    """
    return 4.0 * _valid(noise_scale)


def batch_size_of_inflection(noise_scale: ArrayLike) -> np.ndarray:
    r""":math:`\tfrac{16}{9}\mathcal B`, from where on the bound for exponent 2 gains less and less with the batch size.

    For exponent 1 that is so from the smallest batch on.
    """
    return 16.0 / 9.0 * _valid(noise_scale)


def correct_for_batch_size(noise_scale: ArrayLike, simple_noise_scale: ArrayLike, batch_size: ArrayLike) -> np.ndarray:
    r"""A noise scale of exponent 2 without most of what it reads too low at batch size B.

    Its signal is the norm of a noisy gradient g instead of the true G. In the Euclidean norm the excess is known,
    :math:`E|g|^2/|G|^2 = 1 + B_{simple}/B`, and if g and G have the same ratio of norms, :math:`\|g\|/|g| = \|G\|/|G|`,
    it is the same here:

    .. math:: \mathcal B \approx \mathcal B_{measured} (1 + B_{simple}/B).

    Exact for ``l1`` if gradient entries are Gaussian with one ratio of signal to noise, and for any noise as B grows.
    Where the true gradient is sparser than the noise, or of lower rank, as always for ``nuclear``, too little is
    corrected. On a small GPT at 1/3 to 100 times :math:`B_{simple}`, ``l1`` read 0.23 to 1.06 of the truth before and
    0.78 to 1.09 after, ``nuclear`` 0.10 to 0.88 before and 0.29 to 0.88 after. On a noisy quadratic, where few of 4096
    coordinates hold the signal, ``l1`` at five times :math:`B_{simple}` read 0.18 before and no more than 0.21 after.

    Args:
        noise_scale: mean noise over mean signal, squared.
        simple_noise_scale: in geometry ``l2``, of the same steps.
        batch_size: of these steps.

    Raises:
        ConfigError: if a batch size is not positive.
    """
    return _valid(noise_scale) * (1.0 + _valid(simple_noise_scale) / _positive(batch_size))


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
