r"""Predict the best learning rate from results of another sweep, and from the sweep's own results once there are any.

.. math:: \ln\eta(B) = \ln\eta_{there}(B) + d(B)

:math:`\eta_{there}` is the line of :mod:`cbs.trial.lr_law` through the optima of the other sweep. Before any trial
has run, :math:`d` is 0 with standard deviation :data:`MOVED`; afterwards it is the same kind of line, with a prior
slope of 0, through the differences between the sweep's own optima and the prediction. Another width, depth or target
that shifts all learning rates alike therefore costs one search only, and the sweep's own optima take over as they
arrive: the prior places trials but never decides which learning rate is best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cbs.trial.lr_law import Expected, expected
from sweeps.spec.prior import Prior

MOVED = math.log(2.0)
"""Prior standard deviation of ln lr between two sweeps of the same optimizer."""


def expected_from(prior: Prior, at: float, known: Sequence[tuple[float, float, float]]) -> Expected:
    """Predict the best learning rate at one batch size.

    Args:
        prior: best learning rates of the optimizer in the other sweep.
        at: ln of the batch size asked for.
        known: the sweep's own optima, each as ln batch size, ln of the best learning rate and its variance; may be
            empty.
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
