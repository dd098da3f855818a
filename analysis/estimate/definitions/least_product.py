r"""The batch size around which steps times examples are least: the headline.

A run at batch size B takes :math:`S(B)` steps and :math:`E = B S(B)` examples. Where their product, averaged over ln B
from half to twice a batch size, is least, it is as large at the half as at the double: four times the batch takes half
the steps and twice the examples. Below, more batch saves more time than it costs data, above, less. On the hyperbola
:math:`S E = S_{min} E_{min} (1 + B_{crit}/B)(1 + B/B_{crit})`, alike at :math:`B_{crit}/c` and :math:`c B_{crit}` for
every c, this is :math:`B_{crit} = E_{min}/S_{min}`, the critical batch size of McCandlish et al. (2018),
arXiv:1812.06162, equation 2.12. Unlike their asymptotes it lies inside the measured batch sizes, and it exists for
curves without any. (In hardware design the product of energy and delay is used in the same way: Gonzalez and Horowitz,
"Energy dissipation in general purpose microprocessors", IEEE Journal of Solid-State Circuits 31, 1996.)

Why an average: the lowest point itself hangs on the slope at one place, which sweeps with a factor of 2 between their
batch sizes hardly see. The average asks for steps at two batch sizes that they do see; its intervals are a fifth
narrower, and neither a jump nor a kink moves it far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, CurveSample, Definition
from analysis.estimate.draws import BEYOND, Draws, at_sizes
from analysis.estimate.prior import STEP
from analysis.quantities import Array
from cbs.errors import ConfigError

SPAN = 2.0  # The product is averaged from a batch size over this to one times this
SHARE = 0.1  # By how much the product may exceed the least where a batch size is nearly as good; by hand


@DEFINITIONS.register("least_product")
@dataclass(frozen=True, kw_only=True)
class LeastProduct(Definition):
    """Batch size around which steps times examples are least on average, in examples; 0 or infinity if that is below
    the smallest or above the largest one measured.

    Depends on: the target; the measured batch sizes around it. It is no extrapolation, but for its mean within the span
    of the smallest or the largest of them: the curve beyond is part of it, as uncertain as its draws.

    Source: on the hyperbola it is the critical batch size of arXiv:1812.06162, equation 2.12.

    Attributes:
        exchange: how many percent more examples one percent fewer steps may cost: the product is then
            :math:`E S^r`. Time is dearer than data above 1.
        span: the product is averaged from the batch size over this to the batch size times this; 1 to take the lowest
            point itself.

    Raises:
        ConfigError: if the span is below 1, or wider than curves are drawn beyond the measured batch sizes.
    """

    exchange: float = 1.0
    span: float = SPAN

    def __post_init__(self) -> None:
        if not 1 <= self.span <= math.exp(BEYOND):
            raise ConfigError(f"span must be from 1 to {math.exp(BEYOND):.2f}, got {self.span:g}")

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        return least_product(samples[at].draws, self.exchange, self.span)

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == 0:
            return f"below the smallest measured batch size, {sizes[0]:g}: add smaller ones"
        return f"above the largest measured batch size, {sizes[-1]:g}: add larger ones" if value == math.inf else ""


def least_product(draws: Draws, exchange: float = 1.0, span: float = SPAN) -> Array:
    """Return around which batch size every draw has its least :math:`E S^r`, in examples, shape ``[R]``; 0 or infinity
    beyond the measured batch sizes."""
    logs = least_place(draws, exchange, span)
    first, last = np.log(draws.batch_sizes[[0, -1]])
    return np.where(logs < first, 0.0, np.where(logs > last, np.inf, np.exp(logs)))


def least_place(draws: Draws, exchange: float = 1.0, span: float = SPAN) -> Array:
    """Return ln of the batch size around which every draw has its least :math:`E S^r`, shape ``[R]``; where that lies
    beyond the batch sizes around which curves are drawn, about their end."""
    middles, weights = _average(draws.log_sizes, math.log(span))
    product = middles + (1 + exchange) * draws.curves @ weights
    lowest, rows = product.argmin(axis=1), np.arange(len(product))
    inner = np.clip(lowest, 1, product.shape[1] - 2)
    before, here, after = (product[rows, inner + side] for side in (-1, 0, 1))
    bend = before - 2 * here + after
    # the vertex of the parabola through the lowest point and its neighbours
    shift = np.where((bend > 0) & (lowest == inner), 0.5 * (before - after) / np.where(bend > 0, bend, 1.0), 0.0)
    return np.asarray(middles[lowest] + STEP * shift)


def _average(log_sizes: Array, reach: float) -> tuple[Array, Array]:
    """Return the points of a grid ``[G]`` around which it is known up to ``reach`` on both sides, ``[K]``, and the
    weights ``[G, K]`` of its points in the averages there."""
    middles = log_sizes[(log_sizes > log_sizes[0] + reach - STEP / 2) & (log_sizes < log_sizes[-1] - reach + STEP / 2)]
    parts = 2 * math.ceil(reach / STEP) or 1
    positions = middles[:, None] + reach * ((2 * np.arange(parts) + 1) / parts - 1)
    at_each = at_sizes(log_sizes, np.eye(len(log_sizes)), np.exp(positions.ravel()))
    return middles, np.asarray(at_each.reshape(len(log_sizes), len(middles), parts).mean(axis=2))


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
