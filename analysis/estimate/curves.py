r"""The curve of steps to target against batch size.

.. math:: S(B) = S_{min} \left(1 + (B_{crit}/B)^a\right)

At :math:`B_{crit}` a run takes twice the fewest steps, whatever the exponent. With :math:`a = 1` this is the hyperbola
of McCandlish et al. (2018), "An Empirical Model of Large-Batch Training", equations 2.11 and 2.12, with :math:`B_{crit}
= E_{min}/S_{min}`; with a free exponent it is the form that Zhang et al. (2024, arXiv 2410.21676, Definition 1) fit,
:math:`S = \alpha + \beta/B^a`. ``S`` counts optimizer updates, ``E = B S`` and ``B`` count examples. If :math:`a \ne
1`, the examples have no positive finite limit as B goes to 0, so ``E_min`` is defined for the hyperbola only. Defined
for every exponent are the examples at the critical batch size, :math:`2 S_{min} B_{crit}` (twice ``E_min`` on the
hyperbola).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from analysis.arrays import Array


@dataclass(frozen=True)
class StepsCurve:
    r"""Fitted parameters, scalars or one per resample, shape ``[R]``.

    With a ``knee`` g other than 1 the two asymptotes are not joined by a plain sum but by

    .. math:: S(B) = S_{min} \left(1 + (2^g - 1) (B_{crit}/B)^{g a}\right)^{1/g}

    A knee above 1 is sharper (2 is the square root of a sum of squares), one below 1 blunter.

    Attributes:
        log_min_steps: ``ln S_min``, in optimizer updates.
        log_critical: ``ln B_crit``, in examples; if it lies beyond the range of the search, the end of that range.
        exponent: the exponent ``a``.
        critical: ``B_crit`` in examples; 0 if the data show only a plateau, infinity if they show only perfect scaling.
        knee: the knee parameter ``g``.
        largest: batch size from which on steps no longer fall, see :meth:`levelled`; infinity if they approach
            ``S_min`` but never reach it.
    """

    log_min_steps: Array
    log_critical: Array
    exponent: Array
    critical: Array
    knee: Array = field(default_factory=lambda: np.ones(()))
    largest: Array = field(default_factory=lambda: np.full((), np.inf))

    def __post_init__(self) -> None:
        for name in ("knee", "largest"):
            shape = np.shape(self.log_min_steps)
            object.__setattr__(self, name, np.broadcast_to(np.asarray(getattr(self, name), dtype=float), shape))

    def log_steps(self, batch_sizes: Array) -> Array:
        """Return ``ln S`` at ``batch_sizes`` ``[M]``, or at one per row ``[R, 1]``; shape ``[M]`` or ``[R, M]``."""
        level, critical, slope, knee, factor, end = (np.asarray(values)[..., None] for values in self._parts())
        log_sizes = np.minimum(np.log(np.asarray(batch_sizes, dtype=float)), end)
        rise = np.logaddexp(0.0, factor + slope * (critical - log_sizes))
        return np.asarray(level + (rise - np.logaddexp(0.0, factor + slope * (critical - end))) / knee)

    def log_sizes(self, log_steps: Array) -> Array:
        """Return ``ln`` of the batch size that takes ``log_steps`` (``ln S``), in the shape of the parameters; NaN if
        no batch size takes so few steps."""
        level, critical, slope, knee, factor, end = self._parts()
        rise = knee * (log_steps - level) + np.logaddexp(0.0, factor + slope * (critical - end))
        with np.errstate(all="ignore"):
            log_sizes_at = critical - (np.log(np.expm1(rise)) - factor) / slope
        return np.where((rise > 0) & (log_steps >= level), log_sizes_at, np.nan)

    @property
    def log_cheapest(self) -> Array:
        """``ln`` of the batch size with the fewest examples; minus infinity if smaller is always cheaper."""
        _, critical, slope, _, factor, end = self._parts()
        with np.errstate(divide="ignore"):
            return np.minimum(critical + (factor + np.log(np.maximum(self.exponent - 1.0, 0.0))) / slope, end)

    def _parts(self) -> tuple[Array, ...]:
        """Return level, critical batch size, slope, knee, factor and end, in logarithms, which define the curve."""
        critical, end = np.asarray(self.log_critical), np.log(self.largest)
        # log of the rise (S/S_min)^g - 1 at the critical batch size, times a correction if the curve levels off
        at_critical, slope = np.exp2(self.knee), np.asarray(self.knee * self.exponent)
        factor = np.log(at_critical - 1.0) - np.log1p(-at_critical * np.exp(slope * (critical - end)))
        return np.asarray(self.log_min_steps), critical, slope, self.knee, factor, end

    def levelled(self, largest: float) -> StepsCurve:
        """Return the same curve made constant from a batch size on, where its steps are then the fewest.

        If the critical batch size lies beyond ``largest``, because steps still fall steeply there, the curve is
        unchanged.
        """
        slope, now = self.knee * self.exponent, np.asarray(self.log_critical)
        before = now < np.log(largest)
        shift = np.where(before, np.log1p(np.exp2(self.knee) * np.exp(slope * (now - np.log(largest)))) / slope, 0.0)
        critical = np.where(before & (self.critical > 0), np.exp(now - shift), self.critical)
        steps = np.where(before, self.log_steps(np.array([largest]))[..., 0], self.log_min_steps)
        return StepsCurve(steps, now - shift, self.exponent, critical, self.knee, np.where(before, largest, np.inf))

    @property
    def min_steps(self) -> Array:
        """``S_min``, in optimizer updates; 0 if only perfect scaling is seen."""
        return np.where(np.isinf(self.critical), 0.0, np.exp(self.log_min_steps))

    @property
    def examples_at_critical(self) -> Array:
        """Examples to target at ``B_crit``, ``2 S_min B_crit``; 0 or infinity where ``critical`` is."""
        bounded = np.isfinite(self.critical) & (self.critical > 0)
        return np.where(bounded, 2.0 * np.exp(self.log_min_steps + self.log_critical), self.critical)

    @property
    def min_examples(self) -> Array:
        """``E_min`` of a hyperbola (``a = 1``), in examples; 0 if only a plateau is seen."""
        return np.where(self.critical == 0, 0.0, np.exp(self.log_min_steps + self.log_critical))

    def mapped(self, change: Callable[..., Array], *others: StepsCurve) -> StepsCurve:
        """Apply ``change`` to every parameter; it also receives the same parameters of ``others``."""
        every = (self, *others)
        return StepsCurve(*(change(*(getattr(curve, name) for curve in every)) for name in self.__dataclass_fields__))

    def row(self, index: int) -> StepsCurve:
        """Return one of many curves, with scalar parameters."""
        return self.mapped(lambda values: np.asarray(values[index]))

    def then(self, resampled: StepsCurve) -> StepsCurve:
        """Return this curve (scalars) followed by the resampled ones, shape ``[1 + R]``."""
        return self.mapped(np.append, resampled)
