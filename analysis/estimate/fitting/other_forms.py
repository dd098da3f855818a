"""What the other forms of the curve say of the critical batch size, and which batch sizes would tell them apart.

The interval holds them in proportion to their priors and likelihoods. Here they are taken as equally likely
beforehand, each scattered around its own critical batch size as the power law is around its own, so that an answer that
rests on the belief alone is noticed. The forms are no complete list, and with little noise the likelihood tells even
the nearest one from the truth: it counts to the power :data:`COARSE`, as for data that come from near a form only
(Miller and Dunson 2019, "Robust Bayesian inference via coarsening", arXiv 1506.06101).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analysis.arrays import Interval
from analysis.estimate.fitting import Fit

COARSE = 0.5
"""Power of the likelihood of a form in :attr:`OtherForms.outside`."""

_LIKELY = 0.1
"""Likelihood, over that of the form that the data speak for most, from which on a form is named."""

_APART = 1.05
"""Critical batch sizes closer than this are not named beside each other."""

_DECIDING = 2

_WIDE_GAP = 3.0

_FAR = (64.0, 16.0)
"""How many times smaller, and larger, than the critical batch size those that were measured may be for more beyond them
to say anything."""


@dataclass(frozen=True)
class OtherForms:
    """What the other forms say of the critical batch size.

    Attributes:
        outside: probability that the critical batch size lies outside the interval, were all forms equally likely
            before the data, which tell them apart by :data:`COARSE`.
        named: what a form that fits as well says of the steps, to follow "if", and its critical batch size; at most
            the one with the smallest and the one with the largest.
        deciding: batch sizes at which the forms differ most, increasing; none where what would help is less noise.
    """

    outside: float
    named: Sequence[tuple[str, float]] = ()
    deciding: Sequence[int] = ()


def other_forms(fit: Fit, ends: Interval) -> OtherForms | None:
    """What other forms say of the critical batch size whose interval has these ``ends``; ``None`` where one is open."""
    low, high = ends
    if low is None or high is None:
        return None
    likely = np.array([form.likelihood for form in fit.forms]) ** COARSE
    apart = np.array([form.estimate.critical for form in fit.forms]) / fit.power.critical
    with np.errstate(invalid="ignore"):
        at = apart[:, None] * fit.resampled_power.critical
    outside = float(likely @ (~((at >= low) & (at <= high))).mean(axis=1) / likely.sum())
    now = float(fit.estimate.critical)
    says = sorted((float(form.estimate.critical), form.form.words) for form in fit.forms if form.likelihood >= _LIKELY)
    named = [(words, value) for value, words in (says[0], says[-1]) if abs(math.log(value / now)) > math.log(_APART)]
    return OtherForms(outside, tuple(dict.fromkeys(named)), _deciding(fit))


def middles(batch_sizes: Sequence[float]) -> list[int]:
    """Middles of the wide gaps between increasing batch sizes."""
    return [round(math.sqrt(low * high)) for low, high in pairwise(batch_sizes) if high / low > _WIDE_GAP]


def _deciding(fit: Fit) -> tuple[int, ...]:
    """Of those a factor of four beyond the measured batch sizes and the middles of wide gaps the ones where the forms,
    each with its likelihood, are farthest apart."""
    first, last, critical = round(fit.batch_sizes[0]), round(fit.batch_sizes[-1]), float(fit.estimate.critical)
    wanted = [max(first // 4, 1)] if first > max(1.0, critical / _FAR[0]) else []
    wanted += [last * 4] if last < critical * _FAR[1] else []
    wanted += middles(fit.batch_sizes.tolist())
    if not wanted:
        return ()
    sizes = np.array(sorted(set(wanted)))
    weights = np.array([form.likelihood for form in fit.forms])
    logs = np.array([form.estimate.log_steps(sizes) for form in fit.forms])
    apart = weights @ (logs - weights @ logs / weights.sum()) ** 2
    return tuple(sorted(sizes[np.argsort(-apart, kind="stable")[:_DECIDING]].tolist()))
