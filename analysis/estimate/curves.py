r"""The curve of steps to target against batch size.

.. math:: S(B) = S_{min} \left(1 + (B_{crit}/B)^a\right)

At :math:`B_{crit}` a run takes twice the fewest steps, whatever the exponent. With :math:`a = 1` this is the hyperbola
of McCandlish et al. (2018), "An Empirical Model of Large-Batch Training", equations 2.11 and 2.12, with
:math:`B_{crit} = E_{min}/S_{min}`; with a free exponent the form that Zhang et al. (2024, arXiv 2410.21676, Definition
1) fit, :math:`S = \alpha + \beta/B^a`. ``S`` counts optimizer updates, ``E = B S`` and ``B`` examples. Off
:math:`a = 1` examples have no limit as B goes to 0: ``E_min`` belongs to the hyperbola alone, and what remains are the
examples at the critical batch size, :math:`2 S_{min} B_{crit}` (twice ``E_min`` on the hyperbola).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array


@dataclass(frozen=True)
class Curve:
    """Fitted parameters, scalars or one per resample, shape ``[R]``.

    Attributes:
        log_min_steps: ``ln S_min``, optimizer updates.
        log_critical: ``ln B_crit``, examples; the end of where it was looked for, where it lies beyond.
        exponent: ``a``.
        critical: ``B_crit`` in examples; 0 where the data show a plateau only, infinity where perfect scaling only.
    """

    log_min_steps: Array
    log_critical: Array
    exponent: Array
    critical: Array

    def log_steps(self, batch_sizes: Array) -> Array:
        """``ln S`` at ``batch_sizes`` ``[M]``, shape ``[M]`` or ``[R, M]``."""
        log_sizes = np.log(np.asarray(batch_sizes, dtype=float))
        rise = np.asarray(self.exponent)[..., None] * (np.asarray(self.log_critical)[..., None] - log_sizes)
        return np.asarray(np.asarray(self.log_min_steps)[..., None] + np.logaddexp(0.0, rise))

    @property
    def min_steps(self) -> Array:
        """``S_min``, optimizer updates; 0 where only perfect scaling is seen."""
        return np.where(np.isinf(self.critical), 0.0, np.exp(self.log_min_steps))

    @property
    def examples_at_critical(self) -> Array:
        """Examples to target at ``B_crit``, ``2 S_min B_crit``; 0 or infinity where ``critical`` is."""
        bounded = np.isfinite(self.critical) & (self.critical > 0)
        return np.where(bounded, 2.0 * np.exp(self.log_min_steps + self.log_critical), self.critical)

    @property
    def min_examples(self) -> Array:
        """``E_min`` of a hyperbola (``a = 1``), examples; 0 where only a plateau is seen."""
        return np.where(self.critical == 0, 0.0, np.exp(self.log_min_steps + self.log_critical))

    def mapped(self, change: Callable[..., Array], *others: Curve) -> Curve:
        """With ``change`` done to every parameter; it is given the same ones of ``others``, too."""
        every = (self, *others)
        return Curve(*(change(*(getattr(curve, name) for curve in every)) for name in self.__dataclass_fields__))

    def row(self, index: int) -> Curve:
        """One of many as scalars."""
        return self.mapped(lambda values: np.asarray(values[index]))

    def then(self, resampled: Curve) -> Curve:
        """Scalars, followed by the resamples, shape ``[1 + R]``."""
        return self.mapped(np.append, resampled)
