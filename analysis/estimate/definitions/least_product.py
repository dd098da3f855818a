r"""The batch size at which steps times examples are least: the headline.

A run at batch size B takes :math:`S(B)` steps and :math:`E = B S(B)` examples. Where the product :math:`S E = B S^2` is
least, one percent fewer steps cost one percent more examples: below, doubling saves more time than it costs data,
above, less. On the hyperbola :math:`S E = S_{min} E_{min} (1 + B_{crit}/B)(1 + B/B_{crit})`, least at :math:`B_{crit} =
E_{min}/S_{min}`, the critical batch size of McCandlish et al. (2018), arXiv:1812.06162, equation 2.12. Unlike their
asymptotes it lies inside the measured batch sizes, and it exists for curves without any. (In hardware design the
product of energy and delay is used in the same way: Gonzalez and Horowitz, "Energy dissipation in general purpose
microprocessors", IEEE Journal of Solid-State Circuits 31, 1996.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, CurveSample, Definition
from analysis.estimate.draws import Draws
from analysis.estimate.prior import STEP
from analysis.quantities import Array

SHARE = 0.1  # By how much the product may exceed the least where a batch size is nearly as good


@DEFINITIONS.register("least_product")
@dataclass(frozen=True, kw_only=True)
class LeastProduct(Definition):
    """Batch size at which steps times examples are least, in examples; 0 or infinity if that is below the smallest or
    above the largest one measured.

    Depends on: the target; the measured batch sizes around it. It is no extrapolation.

    Source: on the hyperbola it is the critical batch size of arXiv:1812.06162, equation 2.12.

    Attributes:
        exchange: how many percent more examples one percent fewer steps may cost: the product is then
            :math:`E S^r`. Time is dearer than data above 1.
    """

    exchange: float = 1.0

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        return least_product(samples[at].draws, self.exchange)

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == 0:
            return f"below the smallest measured batch size, {sizes[0]:g}: add smaller ones"
        return f"above the largest measured batch size, {sizes[-1]:g}: add larger ones" if value == math.inf else ""


def least_product(draws: Draws, exchange: float = 1.0) -> Array:
    """Return where every draw has its least :math:`E S^r`, in examples, shape ``[R]``; 0 or infinity beyond the
    measured batch sizes."""
    logs = least_place(draws, exchange)
    first, last = np.log(draws.batch_sizes[[0, -1]])
    return np.where(logs < first, 0.0, np.where(logs > last, np.inf, np.exp(logs)))


def least_place(draws: Draws, exchange: float = 1.0) -> Array:
    """Return ln of the batch size at which every draw has its least :math:`E S^r`, shape ``[R]``; where that lies
    beyond the batch sizes at which curves are drawn, about their end."""
    product = draws.log_sizes + (1 + exchange) * draws.curves
    lowest, rows = product.argmin(axis=1), np.arange(len(product))
    inner = np.clip(lowest, 1, product.shape[1] - 2)
    before, here, after = (product[rows, inner + side] for side in (-1, 0, 1))
    bend = before - 2 * here + after
    # the vertex of the parabola through the lowest point and its neighbours
    shift = np.where((bend > 0) & (lowest == inner), 0.5 * (before - after) / np.where(bend > 0, bend, 1.0), 0.0)
    return np.asarray(draws.log_sizes[lowest] + STEP * shift)


def within(draws: Draws, share: float = SHARE, exchange: float = 1.0) -> tuple[float | None, float | None]:
    """Return the range of batch sizes around the least product in which it is at most ``share`` larger, by the expected
    curve; a lower end below the measured batch sizes, or an upper one above, is ``None``. On the hyperbola 10 % allow
    .54 to 1.86 times the least."""
    product = draws.log_sizes + (1 + exchange) * draws.mean
    least = int(product.argmin())
    far = product > product[least] + math.log1p(share)
    below, above = np.flatnonzero(far[:least]), np.flatnonzero(far[least:])
    first, last = draws.batch_sizes[[0, -1]]
    low = math.exp(draws.log_sizes[below[-1] + 1]) if len(below) else 0.0
    high = math.exp(draws.log_sizes[least + above[0] - 1]) if len(above) else math.inf
    return low if low >= first else None, high if high <= last else None
