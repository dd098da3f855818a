r"""Where the best learning rate should lie by results of another sweep, and by one's own once there are any.

.. math:: \ln\eta(B) = \ln\eta_{there}(B) + d(B)

:math:`\eta_{there}` is the line of :mod:`sweeps.search.lr_law` through the optima of the other sweep. Before anything
has run :math:`d` is 0, give or take :data:`MOVED`; afterwards it is the same kind of line through the differences of
one's own optima from it, with a slope near 0. So another width, depth or target that moves all learning rates alike
costs one search, and one's own optima take over as they come: the prior places trials and outvotes none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeps.search.lr_law import Expected, expected
from sweeps.spec.prior import Prior

MOVED = math.log(2.0)
"""Standard deviation of ln lr between two sweeps of one optimizer, a prior."""


def expected_from(prior: Prior, at: float, known: Sequence[tuple[float, float, float]]) -> Expected:
    """The law at ``at``, in ln batch size.

    Args:
        prior: of the optimizer.
        at: ln of the batch size asked for.
        known: of one's own optima ln batch size, ln of the best learning rate and its variance; there may be none.
    """

    def there(size: float) -> Expected:
        return expected(size, prior.log_sizes, prior.log_lrs, prior.variances)

    law = there(at)
    if not known:
        return Expected(law.log_lr, math.hypot(law.deviation, MOVED))
    sizes, lrs, variances = zip(*known, strict=True)
    moved = [lr - there(size).log_lr for size, lr in zip(sizes, lrs, strict=True)]
    rest = expected(at, sizes, moved, variances, slope=0.0)
    return Expected(law.log_lr + rest.log_lr, rest.deviation)
