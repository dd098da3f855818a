r"""Optimizers side by side: how many more examples one needs, and whether one's critical batch size is the larger.

The token ratio of optimizers A and B at a batch size is :math:`R_L(B) = T_A(B) / T_B(B)`, with :math:`T` the tokens (or
examples) to the target (Essential AI, "Practical Efficiency of Muon", 2505.02222, equation 2). Both take the same
tokens per step, so it is the ratio of the steps to target, too.

Different optimizers are different runs. Their bootstraps draw with the same seed, so resamples must not be compared one
by one: for a probability every resample of one meets every resample of the other; for a ratio one side is shuffled.

The resamples of a fit are widened by Student's t, because the noise is estimated from few runs. Two fits estimate it
twice, so what compares them is widened by t at the degrees of freedom of Welch (1947), which are more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.arrays import Array, percentiles
from analysis.estimate.definitions import ROUNDING
from analysis.estimate.fitting import Fit, interval, widening
from analysis.estimate.quantity import Interval, Plain, Quantity
from analysis.estimate.result import Answer
from cbs.errors import ConfigError
from cbs.store import finite_or_none

DEFAULT_REFERENCE = "adamw"

_RESOLUTION = 60


@dataclass(frozen=True, kw_only=True)
class RatioAt(Quantity):
    """Token ratio at a batch size that both optimizers reached the target at.

    Attributes:
        batch_size: examples.
        value: examples to target of the reference over those of the other; above 1 where the other needs fewer.
        interval: both ends ``None`` without resamples.
    """

    batch_size: int


@dataclass(frozen=True, kw_only=True)
class RatioCurve:
    """Ratio of the two fitted curves between the batch sizes that both reached.

    Attributes:
        batch_sizes, values: shape ``[G]``.
        low, high: ends of the interval, shape ``[G]``; NaN without resamples.
    """

    batch_sizes: Array
    values: Array
    low: Array
    high: Array


@dataclass(frozen=True, kw_only=True)
class TokenRatio(Plain):
    """Token ratio of one optimizer.

    Attributes:
        reference: the optimizer in the numerator.
        optimizer: the one in the denominator.
        at: one per batch size that both reached.
        curve: ``None`` where one of them has no fit.
        probability_not_decreasing: that the ratio of the fitted curves does not decrease with the batch size; ``None``
            without resamples. The ratio at the largest batch size that both reached is held against that at the
            smallest.
        slope: least-squares slope of ln(ratio) over ln(batch size), from the measured points alone.
        slope_interval: of it.
        probability_slope_not_negative: that the slope is at least 0.
    """

    reference: str
    optimizer: str
    at: tuple[RatioAt, ...]
    curve: RatioCurve | None = field(repr=False)
    probability_not_decreasing: float | None
    slope: float | None
    slope_interval: Interval
    probability_slope_not_negative: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the curve is left to the figure's table."""
        found = super().to_json()
        return found | {"token_ratio": found.pop("at")}


@dataclass(frozen=True, kw_only=True)
class CriticalPair(Plain):
    """Critical batch sizes of two optimizers.

    Attributes:
        larger, smaller: the optimizers; the names say what ``probability`` is about, not what was found.
        probability: that the critical batch size of ``larger`` exceeds that of ``smaller``; ``None`` without resamples.
        ratio: of the critical batch sizes; ``None`` where one of them is not bounded.
        interval: of the ratio; an end that the data leave open is ``None``.
    """

    larger: str
    smaller: str
    probability: float | None
    ratio: float | None
    interval: Interval


def named(answers: Sequence[Answer], name: str) -> list[Answer]:
    """The answers whose optimizer has this name, or has it before its options."""
    exact = [answer for answer in answers if answer.group.optimizer == name]
    return exact or [answer for answer in answers if answer.group.optimizer.partition("(")[0] == name]


def pick_reference(answers: Sequence[Answer], wanted: str | None) -> Answer:
    """The answer that the others are compared with: as asked where it is there, else ``adamw``, else the first.

    Raises:
        ConfigError: if the name stands for more than one optimizer.
    """
    found = [] if wanted is None else named(answers, wanted)
    if len(found) > 1:
        names = ", ".join(answer.group.optimizer for answer in found)
        raise ConfigError(f"reference {wanted!r} stands for several optimizers: {names}; give one of these")
    return (found or named(answers, DEFAULT_REFERENCE) or list(answers))[0]


def token_ratio(reference: Answer, other: Answer) -> TokenRatio:
    """Examples to target of ``reference`` over those of ``other``, at every batch size both reached."""
    ours, theirs = (_log_steps(answer) for answer in (reference, other))
    shared = sorted(ours.keys() & theirs.keys())
    values = np.array([ours[size] - theirs[size] for size in shared])
    confidence = reference.confidence
    resampled = _log_ratios(reference, other, shared)
    ends = [interval(np.exp(column), confidence) if len(column) else (None, None) for column in resampled.T]
    sloped = len(shared) > 1
    slopes = _slopes(shared, resampled) if sloped else np.empty(0)
    low, high = percentiles(slopes, confidence)
    return TokenRatio(
        reference=reference.group.optimizer,
        optimizer=other.group.optimizer,
        at=tuple(
            RatioAt(batch_size=size, value=math.exp(value), interval=end)
            for size, value, end in zip(shared, values, ends, strict=True)
        ),
        curve=_curve(reference, other, shared),
        probability_not_decreasing=_rises(reference, other, shared),
        slope=float(_slopes(shared, values[None])[0]) if sloped else None,
        slope_interval=(finite_or_none(float(low)), finite_or_none(float(high))),
        probability_slope_not_negative=float((slopes >= 0).mean()) if len(slopes) else None,
    )


def critical_pair(larger: Answer, smaller: Answer) -> CriticalPair:
    """Whether one critical batch size exceeds another, by the chosen definition.

    Resamples that the data do not bound (0, infinity) count as that; where both are the same one, neither is the
    larger. Resamples without a value are left out.
    """
    factors = narrowing(larger.fit, smaller.fit, larger.confidence)
    mine, its = (
        _narrowed(answer.critical.resampled, answer.critical_batch_size, factor)
        for answer, factor in zip((larger, smaller), factors, strict=True)
    )
    mine, its = mine[~np.isnan(mine)], its[~np.isnan(its)]
    values = larger.critical_batch_size, smaller.critical_batch_size
    return CriticalPair(
        larger=larger.group.optimizer,
        smaller=smaller.group.optimizer,
        probability=exceeds(mine, its) if len(mine) and len(its) else None,
        ratio=None if values[0] is None or values[1] is None else values[0] / values[1],
        interval=_ratio_interval(mine, its, larger.confidence, seed=larger.config.seed),
    )


def exceeds(first: Array, second: Array) -> float:
    """Probability that a draw of ``first`` exceeds an independent one of ``second``; equal ones count half.

    Shapes ``[R]`` and ``[Q]``, not empty, without NaN; infinities are larger than anything else. All ``R * Q`` pairs
    count (the Mann-Whitney statistic over its largest value).
    """
    ordered = np.sort(second)
    below = np.searchsorted(ordered, first, side="left") + np.searchsorted(ordered, first, side="right")
    return float(below.mean() / (2 * len(second)))


def shuffled(values: Array, *, seed: int, turn: int = 1) -> Array:
    """The resamples of one optimizer in another order, alike for all of its numbers: independent of the others'.

    Args:
        values: shape ``[R, ...]``.
        seed: of the analysis.
        turn: place of the optimizer among those that are compared; 0 keeps the order.
    """
    return values if turn == 0 else values[np.random.default_rng([seed, turn]).permutation(len(values))]


def narrowing(first: Fit | None, second: Fit | None, confidence: float) -> tuple[float, float]:
    """Factors on the deviations of the resamples of two fits where these are compared with one another.

    Each fit is widened by t at its own degrees of freedom n; the difference of two with variances v has
    (v1 + v2)^2 / (v1^2/n1 + v2^2/n2) of them (Welch, "The generalization of Student's problem", 1947).
    """
    if first is None or second is None:
        return 1.0, 1.0
    fits = (first, second)
    freedoms = [fit.freedom for fit in fits]
    variances = [fit.deviation**2 / max(1.0, float(fit.weights.sum())) for fit in fits]
    if not (min(freedoms) > 0 and min(variances) > 0):
        return 1.0, 1.0
    scaled = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True))
    together = widening(sum(variances) ** 2 / scaled, confidence)
    one, two = (together / widening(freedom, confidence) for freedom in freedoms)
    return one, two


def _narrowed(values: Array, centre: float | None, factor: float) -> Array:
    """Resamples nearer to ``centre`` by ``factor`` in their logarithm; 0 and infinity stay what they are."""
    if centre is None or not 0 < centre < math.inf:
        return values
    bounded = np.isfinite(values) & (values > 0)
    return np.where(bounded, centre * (np.where(bounded, values, centre) / centre) ** factor, values)


def _log_steps(answer: Answer) -> dict[int, float]:
    """Natural log of the steps to target by batch size: what the curve is fitted to, else the mean over seeds."""
    if answer.fit is not None:
        return {int(size): float(log) for size, log in zip(answer.fit.batch_sizes, answer.fit.log_steps, strict=True)}
    return {point.batch_size: math.log(point.steps_to_target) for point in answer.points if point.steps_to_target}


def _narrowed_pair(
    first: Answer, second: Answer, read: Callable[[Fit], tuple[Array, Array]]
) -> tuple[Array, Array] | None:
    """Resamples of a logarithm of both fits, nearer to its estimate as :func:`narrowing` says; ``None`` where a fit has
    none. ``read`` gives estimate and resamples of a fit."""
    one, two = first.fit, second.fit
    if one is None or two is None or not len(one.resampled_log_steps) * len(two.resampled_log_steps):
        return None
    found = []
    for fit, factor in zip((one, two), narrowing(one, two, first.confidence), strict=True):
        centre, resampled = read(fit)
        found.append(centre + factor * (resampled - centre))
    return found[0], found[1]


def _log_ratios(reference: Answer, other: Answer, shared: Sequence[int]) -> Array:
    """Resampled ln(ratio) around the measured means, shape ``[R, shared]``; no rows where there are no resamples."""

    def measured(fit: Fit) -> tuple[Array, Array]:
        place = np.searchsorted(fit.batch_sizes, np.asarray(shared, dtype=float))
        return fit.log_steps[place], fit.measured_resamples[:, place]

    pair = _narrowed_pair(reference, other, measured)
    return np.empty((0, len(shared))) if pair is None else pair[0] - shuffled(pair[1], seed=reference.config.seed)


def _slopes(batch_sizes: Sequence[int], log_ratios: Array) -> Array:
    """Least-squares slope over ln(batch size) of every row."""
    x = np.log(np.asarray(batch_sizes, dtype=float))
    x = x - x.mean()
    return np.asarray(log_ratios @ x / (x @ x))


def _rises(reference: Answer, other: Answer, shared: Sequence[int]) -> float | None:
    def fall(fit: Fit) -> tuple[Array, Array]:
        ends = np.array([shared[0], shared[-1]], dtype=float)
        centre, resampled = (curve.log_steps(ends) @ np.array([1.0, -1.0]) for curve in (fit.estimate, fit.resampled))
        return centre, resampled

    pair = _narrowed_pair(other, reference, fall) if len(shared) > 1 else None
    if pair is None:
        return None
    mine, its = pair
    # equal ones count whole: two curves of perfect scaling, or two plateaus, have a constant ratio
    return float(np.searchsorted(np.sort(its), mine + ROUNDING, side="right").mean() / len(its))


def _curve(reference: Answer, other: Answer, shared: Sequence[int]) -> RatioCurve | None:
    first, second = reference.fit, other.fit
    if first is None or second is None or len(shared) < 2:
        return None
    grid = np.geomspace(shared[0], shared[-1], _RESOLUTION)
    pair = (
        _narrowed_pair(reference, other, lambda fit: (fit.estimate.log_steps(grid), fit.resampled.log_steps(grid)))
        or (np.empty((0, len(grid))),) * 2
    )
    low, high = percentiles(pair[0] - shuffled(pair[1], seed=reference.config.seed), reference.confidence)
    values = np.exp(first.estimate.log_steps(grid) - second.estimate.log_steps(grid))
    return RatioCurve(batch_sizes=grid, values=values, low=np.exp(low), high=np.exp(high))


def _ratio_interval(first: Array, second: Array, confidence: float, *, seed: int) -> Interval:
    """Percentile interval of the ratio of independent resamples; where both are 0 or both infinite, the ratio may be
    anything: it stands at both ends."""
    count = min(len(first), len(second))
    if not count:
        return None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = shuffled(first, seed=seed, turn=1)[:count] / shuffled(second, seed=seed, turn=2)[:count]
    low = interval(np.where(np.isnan(ratios), 0.0, ratios), confidence)[0]
    high = interval(np.where(np.isnan(ratios), np.inf, ratios), confidence)[1]
    # an end beyond everything that can be measured says no more than that it is open
    return finite_or_none(low), high or None
