"""How the best batch size changes with momentum and weight decay: measured ratios against predicted ones.

The bounds predict ratios, not values: their constants cannot be observed, but at equal constants the batch sizes with
the fewest examples of two settings have the ratio given by :func:`.closed_form.relative_best`. This is predicted for
the optimum of an upper bound, at the same learning rate for every batch size. It is compared with three measured batch
sizes: that of the fewest examples, that of the bound's form fitted to the steps, and the critical batch size of the
analysis, to which the bound does not refer but the claim does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.arrays import OPEN, UNKNOWN, Array, Interval, Quantity
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.independent import narrowing, shuffled
from analysis.estimate.result import Answer, CriticalBatchSize
from analysis.extensions.theory.bounds.checks import CheckOutcome, PredictionCheck
from analysis.extensions.theory.bounds.law import BoundFit
from analysis.extensions.theory.bounds.settings import Setting
from cbs.trial.store import finite_or_none

SOUND = (Verdict.OK, Verdict.FAR_SEED, Verdict.EXPONENT_FROM_PRIOR, Verdict.DEPENDS_ON_FORM, Verdict.TOO_WIDE)
"""Verdicts with which an interval is valid; it includes the forms of the curve in proportion to their probability."""

BOUND = "bound"
"""Name of the ``b*`` of the fitted form among the measured batch sizes."""


Best = tuple[CriticalBatchSize, str]
"""A measured batch size of one setting that may follow the prediction, with its resamples (``definition`` names it),
and why it cannot be used (empty otherwise)."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One setting and its measured batch sizes.

    Attributes:
        answer: answer with its critical batch size.
        setting: properties that matter to the bounds.
        bests: measured batch sizes by name.
    """

    answer: Answer = field(repr=False)
    setting: Setting
    bests: dict[str, Best] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A prediction about several settings of one optimizer, with the measurement.

    Attributes:
        quantity: name of the measured batch size: a definition, or ``bound``.
        optimizers: labels of the settings: two for a ratio, more for an exponent.
        kind: ``ratio`` of the second's batch size to the first's; ``exponent`` of the measured batch size as a power of
            the predicted one, 1 if the prediction holds and 0 if the batch size does not change.
        predicted, measured: predicted value, and measured value with its interval.
        verdict: whether the prediction holds.
        why: why it cannot be decided; empty otherwise.
    """

    quantity: str
    optimizers: tuple[str, ...]
    kind: str
    predicted: float
    measured: Quantity
    verdict: CheckOutcome
    why: str = ""


def bests_of(answer: Answer, fit: BoundFit | None, form: PredictionCheck) -> dict[str, Best]:
    """Return the measured batch sizes of an answer that may follow the prediction, and what speaks against each.

    ``fit`` is the form of the bound fitted to its steps, ``form`` whether they have this form.
    """
    own = answer.critical
    judged = {
        "sfo": _fewest(answer),
        own.definition: (own, "" if answer.verdict in SOUND else f"verdict {str(answer.verdict)!r}"),
    }
    if fit is not None:
        critical = CriticalBatchSize(
            definition=BOUND, options={}, value=fit.best.value, interval=fit.best.interval,
            resampled=fit.resampled.best,
        )  # fmt: skip
        judged[BOUND] = critical, "" if form.verdict is CheckOutcome.HOLDS else f"form: {form.verdict}"
    return judged


def _fewest(answer: Answer) -> Best:
    """Return the batch size of the fewest examples, which may lie anywhere between the neighbours of the measured one.

    At an end of the measured batch sizes it is only a bound.
    """
    by_definition, sizes = (
        answer.definitions["sfo"],
        [float(point.batch_size) for point in answer.points if point.reached],
    )
    if not sizes:
        return by_definition, "the target was not reached"
    place = np.searchsorted(sizes, by_definition.resampled)
    low, high = (np.log([*ends])[place] for ends in ((1.0, *sizes[:-1]), (*sizes[1:], 1.0)))
    between = np.exp(np.random.default_rng(answer.config.seed).uniform(np.minimum(low, high), np.maximum(low, high)))
    drawn = np.where(place == 0, 0.0, np.where(place == len(sizes) - 1, np.inf, between))
    doubts = {sizes[0]: "at the smallest measured", sizes[-1]: "at the largest measured"}
    return replace(by_definition, resampled=drawn), doubts.get(by_definition.value or 0.0, "")


def scalings(variants: Sequence[Variant]) -> tuple[Scaled, ...]:
    """Return ratios of neighbours in predicted order, and one exponent for all, per optimizer and measured batch size.

    Settings are compared if everything else about the optimizer is the same, and either both or neither has weight
    decay. The intervals of the ratios of one batch size hold jointly (Bonferroni).
    """
    families: dict[object, list[Variant]] = {}
    for variant in variants:
        setting = variant.setting
        families.setdefault((setting.name, setting.others, setting.weight_decay > 0), []).append(variant)
    scaled: list[Scaled] = []
    for members in families.values():
        ordered = sorted(members, key=lambda variant: -variant.setting.relative_best)
        for name in dict.fromkeys(name for variant in ordered for name in variant.bests):
            having = [variant for variant in ordered if name in variant.bests]
            scaled += [_scaled(name, pair, of=len(having) - 1) for pair in itertools.pairwise(having)]
            scaled += [_scaled(name, having)] if len(having) > 2 else []
    return tuple(scaled)


def check_outcome(interval: Interval, predicted: float, unmoved: float) -> CheckOutcome:
    """Return the outcome: a prediction fails outside the interval, and holds inside if no change at all lies
    outside."""
    low, high = (end if end is not None else side for end, side in zip(interval, (-math.inf, math.inf), strict=True))
    if not low <= predicted <= high:
        return CheckOutcome.FAILS
    return CheckOutcome.UNKNOWN if low <= unmoved <= high else CheckOutcome.HOLDS


def _doubts(name: str, variants: Sequence[Variant]) -> str:
    optimizers_by_doubt: dict[str, list[str]] = {}
    for variant in variants:
        if doubt := variant.bests[name][1]:
            optimizers_by_doubt.setdefault(doubt, []).append(variant.answer.group.optimizer)
    return "; ".join(f"{', '.join(names)}: {doubt}" for doubt, names in optimizers_by_doubt.items())


def _scaled(name: str, variants: Sequence[Variant], *, of: int = 1) -> Scaled:
    """Compute the ratio of two settings (one of ``of`` ratios), or the exponent of more: the least-squares slope of the
    logarithm of the measured batch size against that of the predicted one. Both are sums of logarithms with weights
    that sum to 0."""
    x, two = np.log([variant.setting.relative_best for variant in variants]), len(variants) == 2
    spread = ((x - x.mean()) ** 2).sum()
    weights = np.array([-1.0, 1.0]) if two else (x - x.mean()) / spread if spread else np.zeros(len(x))
    predicted, unmoved = (math.exp(weights @ x), 1.0) if two else (1.0, 0.0)
    measured, doubt = UNKNOWN, _doubts(name, variants)
    criticals = [variant.bests[name][0] for variant in variants]
    if not weights.any():
        doubt = "the predictions are all the same"
    elif any(critical.value is None or not len(critical.resampled) for critical in criticals):
        doubt = doubt or "not all have a value with resamples"
    else:
        measured = _contrast(weights, criticals, [variant.answer for variant in variants], of)
        if two:
            value, low, high = (None if end is None else math.exp(end) for end in (measured.value, *measured.interval))
            measured = Quantity(value, (low, high))
        doubt = doubt or ("the data do not bound it" if measured.interval == OPEN else "")
    return Scaled(
        quantity=name,
        optimizers=tuple(variant.answer.group.optimizer for variant in variants),
        kind="ratio" if two else "exponent",
        predicted=predicted,
        measured=measured,
        verdict=CheckOutcome.UNKNOWN if doubt else check_outcome(measured.interval, predicted, unmoved),
        why=doubt,
    )


def _contrast(weights: Array, criticals: Sequence[CriticalBatchSize], answers: Sequence[Answer], of: int) -> Quantity:
    """Return a weighted sum of the logarithms of critical batch sizes, at the level at which ``of`` intervals hold
    jointly.

    Resamples of different runs are independent; if one is not bounded, the sum counts at both ends.
    """
    confidence, seed = answers[0].confidence, answers[0].config.seed
    level = 1.0 - (1.0 - confidence) / of
    factors = narrowing([answer.fit for answer in answers], confidence, weights=weights.tolist(), level=level)
    centre = np.log([critical.value or math.nan for critical in criticals])
    count = min(len(critical.resampled) for critical in criticals)
    turns = zip(criticals, range(len(criticals), 0, -1), strict=True)
    drawn = [shuffled(critical.resampled, seed=seed, turn=turn)[:count] for critical, turn in turns]
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = weights @ (centre + np.array(factors) * (np.log(drawn).T - centre)).T
    low, high = (
        np.quantile(np.where(np.isfinite(sums), sums, side), 0.5 + math.copysign(level, side) / 2, method="nearest")
        for side in (-np.inf, np.inf)
    )
    return Quantity(float(weights @ centre), (finite_or_none(float(low)), finite_or_none(float(high))))
