r"""The hyperbola of steps and examples, in closed form (McCandlish et al. 2018, arXiv:1812.06162).

With the learning rate tuned at every batch size B, training to a target takes S steps and ``E = B S`` examples with

.. math:: (S/S_{min} - 1)(E/E_{min} - 1) = 1, \qquad B_{crit} = E_{min}/S_{min}

(equations 2.11 and 2.12). Steps are in optimizer updates, batch sizes and examples in examples. Every function takes
numbers or arrays and broadcasts them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def critical_batch_size(min_steps: ArrayLike, min_examples: ArrayLike) -> np.ndarray:
    """``E_min / S_min``, the batch size that takes twice the fewest steps and twice the fewest examples."""
    return np.divide(min_examples, min_steps)


def steps_to_target(batch_size: ArrayLike, min_steps: ArrayLike, critical: ArrayLike) -> np.ndarray:
    """``S = S_min (1 + B_crit / B)``, equation 2.11 solved for S at ``E = B S``.

    Args:
        batch_size: examples per step.
        min_steps: ``S_min``, the steps of an infinitely large batch.
        critical: ``B_crit``, in examples.
    """
    return np.multiply(min_steps, 1.0 + np.divide(critical, batch_size))


def examples_to_target(batch_size: ArrayLike, min_examples: ArrayLike, critical: ArrayLike) -> np.ndarray:
    """``E = E_min (1 + B / B_crit)``, equation 2.11 solved for E at ``S = E / B``.

    Args:
        batch_size: examples per step.
        min_examples: ``E_min``, the examples of an infinitely small batch.
        critical: ``B_crit``, in examples.
    """
    return np.multiply(min_examples, 1.0 + np.divide(batch_size, critical))


def speed(batch_size: ArrayLike, noise_scale: ArrayLike) -> np.ndarray:
    """Share of a noiseless step's best progress, and of its best learning rate, that is left at a batch size.

    ``1 / (1 + B_noise / B)``, equations 2.6 and 2.7.

    Args:
        batch_size: examples per step.
        noise_scale: ``B_noise``, in examples.
    """
    return 1.0 / (1.0 + np.divide(noise_scale, batch_size))
