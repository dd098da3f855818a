r"""Compare two optimizers: how many more examples one needs, and whether its critical batch size is larger.

The token ratio of optimizers A and B at a batch size is :math:`R_L(B) = T_A(B) / T_B(B)`, with :math:`T` the tokens (or
examples) to the target (Essential AI, "Practical Efficiency of Muon", 2505.02222, equation 2). Both take the same
number of tokens per step, so it is also the ratio of the steps to target.

Different optimizers are independent runs. Their bootstraps use the same random seed, so resamples must not be compared
one by one: for a probability, every resample of one is compared with every resample of the other; for a ratio, one side
is shuffled.

The resamples of a fit are widened by Student's t, because the noise is estimated from few runs. Two fits estimate it
twice, so their comparison is widened by t at Welch's (1947) degrees of freedom, which are more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.arrays import Array, Interval, Quantity, percentiles
from analysis.estimate.definitions import ROUNDING
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.fitting import interval
from analysis.estimate.independent import narrowing, shuffled
from analysis.estimate.result import Answer
from analysis.plain import plain, shown
from cbs.errors import ConfigError
from cbs.registry.choices import read_choice
from cbs.trial.store import finite_or_none

DEFAULT_REFERENCE = "adamw"

_RESOLUTION = 60

Drawn = tuple[Array, Array]
"""Logarithms of an estimate, shape ``[K]`` or scalar, and their resamples, shape ``[R, K]`` or ``[R]``."""


@dataclass(frozen=True, kw_only=True)
class RatioAt(Quantity):
    """Token ratio at one batch size: examples to target of the reference over those of the other, above 1 if the other
    needs fewer. Without resamples both ends of its interval are ``None`` (NaN along a curve). For measured ratios, an
    end is open if the best learning rate is at the edge of its grid, because a better one may lie beyond."""

    batch_size: float


@dataclass(frozen=True, kw_only=True)
class TokenRatio:
    """Token ratio of one optimizer.

    Attributes:
        reference: the reference optimizer.
        optimizer: the other optimizer.
        at: measured ratios, one per batch size at which both reached the target.
        curve: ratio of the fitted curves between the smallest and the largest of these; empty if there are fewer than
            two.
        probability_not_decreasing: probability that the ratio of the fitted curves does not decrease with the batch
            size, comparing the largest with the smallest batch size that both reached; ``None`` without resamples.
        verdict: the worse of the two optimizers' verdicts, which the curve and the probability do not account for.
    """

    reference: str
    optimizer: str
    at: tuple[RatioAt, ...] = field(repr=False)
    curve: tuple[RatioAt, ...] = field(default=(), repr=False)
    probability_not_decreasing: float | None = None
    verdict: Verdict = Verdict.OK

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the curve is only in the figure's table."""
        return shown(self) | {"token_ratio": plain(self.at)}


@dataclass(frozen=True, kw_only=True)
class CriticalPair:
    """Comparison of the critical batch sizes of two optimizers.

    Attributes:
        larger, smaller: the optimizers; the names say what ``probability`` refers to, not what was found.
        probability: probability that the critical batch size of ``larger`` exceeds that of ``smaller``; ``None``
            without resamples.
        ratio: ratio of the critical batch sizes; ``None`` if one of them is not bounded.
        interval: interval of the ratio; an end that the data leave open is ``None``.
        verdict: the worse of the two optimizers' verdicts, which the probability and the interval do not account for.
    """

    larger: str
    smaller: str
    probability: float | None
    ratio: float | None
    interval: Interval
    verdict: Verdict


def named(answers: Sequence[Answer], name: str) -> list[Answer]:
    """Return the answers whose optimizer has this label, or this name and options, ``name(option=value, ...)``."""
    exact = [answer for answer in answers if answer.group.optimizer == name]
    return exact or [answer for answer in answers if read_choice(name).covers(answer.group.choice)]


def pick_reference(answers: Sequence[Answer], wanted: str | None) -> Answer:
    """Return the answer that the others are compared with: the requested one if it exists, otherwise ``adamw``,
    otherwise the first. Raise ``ConfigError`` if a name refers to several optimizers."""
    candidates = [] if wanted is None else named(answers, wanted)
    if len(candidates) > 1:
        names = ", ".join(answer.group.optimizer for answer in candidates)
        raise ConfigError(f"reference {wanted!r} stands for several optimizers: {names}; give one of these")
    return (candidates or named(answers, DEFAULT_REFERENCE) or list(answers))[0]


def token_ratio(reference: Answer, other: Answer) -> TokenRatio:
    """Return the ratio of examples to target of ``reference`` to those of ``other``, at every batch size both
    reached."""
    confidence, seed, both = reference.confidence, reference.config.seed, (reference, other)

    def difference(one: Drawn, two: Drawn) -> Drawn:
        mine, its = _narrowed(reference, other, one, two)
        count = min(len(mine), len(its))
        return one[0] - two[0], mine[:count] - shuffled(its, seed=seed)[:count]

    def ratios(at: Array, values: Array, ends: Iterable[Interval]) -> tuple[RatioAt, ...]:
        rows = zip(at.tolist(), np.exp(values).tolist(), ends, strict=True)
        return tuple(RatioAt(batch_size=size, value=value, interval=end) for size, value, end in rows)

    (sizes, *one), (others, *two) = map(_measured, both)
    shared, mine, its = np.intersect1d(sizes, others, return_indices=True)
    values, resampled = difference((one[0][mine], one[1][:, mine]), (two[0][its], two[1][:, its]))
    known = [interval(np.exp(column), confidence) for column in resampled.T]
    bounds, others_bounds = ({point.batch_size for point in answer.points if point.at_an_edge} for answer in both)
    measured = [
        (None if size in bounds else low, None if size in others_bounds else high)
        for size, (low, high) in zip(shared.tolist(), known, strict=True)
    ]
    ratio = TokenRatio(
        reference=reference.group.optimizer,
        optimizer=other.group.optimizer,
        at=ratios(shared, values, measured),
        verdict=Verdict.gravest(answer.verdict for answer in both),
    )
    if len(shared) < 2:
        return ratio
    grid = np.geomspace(shared[0], shared[-1], _RESOLUTION)
    estimate, along = difference(*(_curve(answer, grid) for answer in both))
    ends = [_curve(answer, shared[[0, -1]]) for answer in both]
    its_fall, fall = (drawn[:, 0] - drawn[:, 1] for drawn in _narrowed(reference, other, *ends))
    # the fits are independent; ties count fully: two of perfect scaling, or two plateaus, have a constant ratio
    rises = np.searchsorted(np.sort(its_fall), fall + ROUNDING, side="right") / max(1, len(its_fall))
    low, high = np.exp(percentiles(along, confidence))
    band = zip(np.where(bool(bounds), np.nan, low), np.where(bool(others_bounds), np.nan, high), strict=True)
    return replace(
        ratio,
        curve=ratios(grid, estimate, band),
        probability_not_decreasing=float(rises.mean()) if len(resampled) else None,
    )


def critical_pair(larger: Answer, smaller: Answer) -> CriticalPair:
    """Compare two critical batch sizes by the chosen definition.

    Resamples that the data do not bound count as 0 or infinity; if both are the same of these, neither is larger.
    Resamples without a value are left out.
    """
    mine, its = (
        values[~np.isnan(values)] for values in _narrowed(larger, smaller, *map(_log_critical, (larger, smaller)))
    )
    values = larger.critical_batch_size, smaller.critical_batch_size
    return CriticalPair(
        larger=larger.group.optimizer,
        smaller=smaller.group.optimizer,
        probability=exceeds(mine, its) if len(mine) and len(its) else None,
        ratio=None if values[0] is None or values[1] is None else values[0] / values[1],
        interval=_ratio_interval(mine, its, larger.confidence, seed=larger.config.seed),
        verdict=Verdict.gravest((larger.verdict, smaller.verdict)),
    )


def exceeds(first: Array, second: Array) -> float:
    """Return the probability that a draw of ``first`` exceeds an independent one of ``second``; ties count half.

    Shapes are ``[R]`` and ``[Q]``, not empty, without NaN; infinities are allowed. All ``R * Q`` pairs count (the
    Mann-Whitney statistic divided by its largest value).
    """
    ordered = np.sort(second)
    below = np.searchsorted(ordered, first, side="left") + np.searchsorted(ordered, first, side="right")
    return float(below.mean() / (2 * len(second)))


def _narrowed(first: Answer, second: Answer, one: Drawn, two: Drawn) -> tuple[Array, Array]:
    """Return resamples of a logarithm of both, moved towards their estimates as :func:`narrowing` says; infinite ones,
    and those of an unknown (NaN) estimate, are unchanged."""
    factors = narrowing((first.fit, second.fit), first.confidence)
    mine, its = (
        np.where(np.isnan(centre), values, centre + factor * (values - centre))
        for (centre, values), factor in zip((one, two), factors, strict=True)
    )
    return mine, its


def _measured(answer: Answer) -> tuple[Array, Array, Array]:
    """Return batch sizes, and natural log of the steps to target: the data of the fit with its resamples, or without a
    fit the means over seeds."""
    fit = answer.fit
    if fit is not None:
        return fit.batch_sizes.astype(int), fit.log_steps, fit.measured_resamples
    steps = {point.batch_size: point.steps_to_target for point in answer.points if point.steps_to_target}
    return np.array([*steps], dtype=int), np.log([*steps.values()]), np.empty((0, len(steps)))


def _log_critical(answer: Answer) -> Drawn:
    value = answer.critical_batch_size
    with np.errstate(divide="ignore"):
        return np.array(math.nan if value is None else math.log(value)), np.log(answer.critical.resampled)


def _curve(answer: Answer, batch_sizes: Array) -> Drawn:
    """Return log steps of the fit and of its resamples."""
    fit = answer.fit
    assert fit is not None
    return fit.estimate.log_steps(batch_sizes), fit.resampled.log_steps(batch_sizes)


def _ratio_interval(first: Array, second: Array, confidence: float, *, seed: int) -> Interval:
    """Return the percentile interval of the ratio of independent resamples, given in logarithms; if both are 0 or both
    infinite, the ratio may be anything, so it counts at both ends."""
    count = min(len(first), len(second))
    if not count:
        return None, None
    with np.errstate(invalid="ignore"):
        ratios = np.exp(shuffled(first, seed=seed, turn=1)[:count] - shuffled(second, seed=seed, turn=2)[:count])
    low = interval(np.where(np.isnan(ratios), 0.0, ratios), confidence)[0]
    high = interval(np.where(np.isnan(ratios), np.inf, ratios), confidence)[1]
    # an end beyond anything that can be measured only means that it is open
    return finite_or_none(low), high or None
