r"""Products of estimates, and the correction of a noise scale for the batch size it was measured at.

On the log axis, the distance of an interval's end from a product of independent positive estimates is the square root
of the sum of the factors' squared distances (Zou and Donner 2008, "method of variance estimates recovery").
"""

from __future__ import annotations

import math

Ends = tuple[float | None, float | None]
"""The two ends of an interval; ``None`` for an open end."""


def product_ends(*factors: tuple[float, Ends]) -> Ends:
    """Return the interval of a product of positive values with intervals; an end is open where that of a factor is."""
    value = math.prod(value for value, _ in factors)

    def end(which: int) -> float | None:
        distances = []
        for own, ends in factors:
            limit = ends[which]
            if not limit:
                return None
            distances.append(math.log(limit / own))
        return value * math.exp((1.0 if which else -1.0) * math.hypot(*distances))

    return end(0), end(1)


def correction(simple: float, ends: Ends, batch_size: float) -> tuple[float, Ends]:
    r"""Return the factor :math:`1 + B_{simple}/B` with its interval, for noise scales of exponent 2 measured at batch
    size B.

    The signal of these noise scales is the norm of a noisy gradient g instead of the true gradient G. In the Euclidean
    norm the bias is known, :math:`E|g|^2/|G|^2 = 1 + B_{simple}/B`, and if g and G have the same ratio of norms,
    :math:`\|g\|/|g| = \|G\|/|G|`, it is the same in the other norm. Exact for ``l1`` if gradient entries are Gaussian
    with the same signal-to-noise ratio, and for any noise as B grows. Where the true gradient is sparser than the
    noise, or of lower rank, as always for ``nuclear``, the correction is too small. On a small GPT at 1/3 to 100 times
    :math:`B_{simple}`, ``l1`` gave 0.23 to 1.06 of the true value before the correction and 0.78 to 1.09 after it,
    ``nuclear`` 0.10 to 0.88 before and 0.29 to 0.88 after. On a noisy quadratic, where few of 4096 coordinates hold the
    signal, ``l1`` at five times :math:`B_{simple}` gave 0.18 before and no more than 0.21 after.
    """
    low, high = ends
    return 1.0 + simple / batch_size, (
        1.0 + (low or 0.0) / batch_size,
        None if high is None else 1.0 + high / batch_size,
    )


def corrected(
    noise_scale: float, ends: Ends, simple: float, simple_ends: Ends, batch_size: float
) -> tuple[float, Ends]:
    r"""Return a noise scale of exponent 2 times :math:`1 + B_{simple}/B`, with its interval.

    The two factors are treated as independent.

    Args:
        noise_scale, ends: measured noise scale and its interval, in a geometry of exponent 2.
        simple, simple_ends: noise scale and interval in geometry ``l2``, from the same steps.
        batch_size: batch size of these steps, in examples.
    """
    factor = correction(simple, simple_ends, batch_size)
    return noise_scale * factor[0], product_ends((noise_scale, ends), factor)
