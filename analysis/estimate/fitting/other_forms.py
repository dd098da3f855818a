"""The critical batch size by other forms of the curve, and the batch sizes that would distinguish the forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analysis.estimate.fitting import Fit

_LIKELY = 0.1
"""Likelihood, relative to the form that the data support most, above which a form is mentioned."""

_APART = 1.05
"""Critical batch sizes whose ratio is below this are not mentioned separately."""

_DECIDING = 2

_WIDE_GAP = 3.0

_FAR = (64.0, 16.0)
"""Factors by which the smallest measured batch size may lie below the critical one, and the largest above it, so that
still smaller or larger ones are informative."""


@dataclass(frozen=True)
class OtherForms:
    """Critical batch sizes by the other forms of the curve.

    Attributes:
        named: for at most two forms that fit as well, what the form says about the steps (to follow "if") and its
            critical batch size: those with the smallest and the largest.
        deciding: batch sizes at which the forms differ most, increasing; empty if less noise would help more.
    """

    named: Sequence[tuple[str, float]] = ()
    deciding: Sequence[int] = ()


def other_forms(fit: Fit) -> OtherForms:
    """Return critical batch sizes by the forms of a fit, and batch sizes at which trials would tell the forms apart."""
    now = float(fit.estimate.critical)
    says = sorted((float(form.estimate.critical), form.form.words) for form in fit.forms if form.likelihood >= _LIKELY)
    named = [(words, value) for value, words in (says[0], says[-1]) if abs(math.log(value / now)) > math.log(_APART)]
    return OtherForms(tuple(dict.fromkeys(named)), _deciding(fit))


def middles(batch_sizes: Sequence[float]) -> list[int]:
    """Return the geometric means of wide gaps between increasing batch sizes."""
    return [round(math.sqrt(low * high)) for low, high in pairwise(batch_sizes) if high / low > _WIDE_GAP]


def _deciding(fit: Fit) -> tuple[int, ...]:
    """Return the batch sizes at which the forms, weighted by likelihood, differ most: among a factor of four beyond the
    measured ones and the middles of wide gaps."""
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
