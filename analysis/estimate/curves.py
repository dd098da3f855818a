r"""The power law of steps to target against batch size, and its asymptotes.

.. math:: S(B) = S_{min} \left(1 + (B_{crit}/B)^a\right)

At :math:`B_{crit}` a run takes twice the fewest steps, whatever the exponent. With :math:`a = 1` this is the hyperbola
of McCandlish et al. (2018), "An Empirical Model of Large-Batch Training", equations 2.11 and 2.12, with :math:`B_{crit}
= E_{min}/S_{min}`; with a free exponent it is the form that Zhang et al. (2024, arXiv 2410.21676, Definition 1) fit,
:math:`S = \alpha + \beta/B^a`. ``S`` counts optimizer updates, ``E = B S`` and ``B`` count examples. If :math:`a \ne
1`, the examples have no positive finite limit as B goes to 0, so ``E_min`` is defined for the hyperbola only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array


@dataclass(frozen=True)
class StepsCurve:
    """Parameters, scalars or one per draw, shape ``[R]``.

    Attributes:
        log_min_steps: ``ln S_min``, in optimizer updates.
        log_critical: ``ln B_crit``, in examples.
        exponent: the exponent ``a``.
    """

    log_min_steps: Array
    log_critical: Array
    exponent: Array

    def log_steps(self, batch_sizes: Array) -> Array:
        """Return ``ln S`` at ``batch_sizes`` ``[M]``; shape ``[M]`` or ``[R, M]``."""
        level, critical, slope = (
            np.asarray(values)[..., None] for values in (self.log_min_steps, self.log_critical, self.exponent)
        )
        return np.asarray(level + np.logaddexp(0.0, slope * (critical - np.log(batch_sizes))))

    @property
    def min_steps(self) -> Array:
        """``S_min``, in optimizer updates."""
        return np.exp(self.log_min_steps)

    @property
    def critical(self) -> Array:
        """``B_crit``, in examples."""
        return np.exp(self.log_critical)

    @property
    def min_examples(self) -> Array:
        """``E_min`` of a hyperbola (``a = 1``), in examples."""
        return np.exp(self.log_min_steps + self.log_critical)

    def mapped(self, change: Callable[..., Array], *others: StepsCurve) -> StepsCurve:
        """Apply ``change`` to every parameter; it also receives the same parameters of ``others``."""
        every = (self, *others)
        return StepsCurve(*(change(*(getattr(curve, name) for curve in every)) for name in self.__dataclass_fields__))
