r"""The curve of steps to target against batch size, as pure functions.

McCandlish et al. (2018), "An Empirical Model of Large-Batch Training", equations 2.11 and 2.12:

.. math:: (S/S_{min} - 1)(E/E_{min} - 1) = 1, \qquad B_{crit} = E_{min}/S_{min}

with :math:`E = B S` this is :math:`S(B) = S_{min} + E_{min}/B`. ``S`` counts optimizer updates, ``E`` and ``B``
examples.
"""

from __future__ import annotations

import numpy as np

from analysis.arrays import Array


def steps_to_target(batch_size: Array | float, min_steps: Array | float, min_examples: Array | float) -> Array:
    """Optimizer updates to the target: ``min_steps + min_examples / batch_size``."""
    return np.asarray(min_steps + np.asarray(min_examples) / batch_size)


def examples_to_target(batch_size: Array | float, min_steps: Array | float, min_examples: Array | float) -> Array:
    """Examples to the target: ``min_steps * batch_size + min_examples``."""
    return np.asarray(np.asarray(min_steps) * batch_size + min_examples)


def perfect_scaling(batch_size: Array, at: float, steps: float) -> Array:
    """Steps if doubling the batch size halved them, through ``steps`` at the batch size ``at``."""
    return steps * at / np.asarray(batch_size)


def saturation(log_batch_size: Array, log_critical: Array | float) -> Array:
    """``ln(S / S_min) = ln(1 + B_crit / B)``, without overflow."""
    return np.logaddexp(0.0, log_critical - log_batch_size)
