r"""Compare two optimizers: how many more examples one needs, and whether its critical batch size is larger.

The token ratio of optimizers A and B at a batch size is :math:`R_L(B) = T_A(B) / T_B(B)`, with :math:`T` the tokens (or
examples) to the target (Essential AI, "Practical Efficiency of Muon", 2505.02222, equation 2). Both take the same
number of tokens per step, so it is also the ratio of the steps to target. Everything here is a function of draws of the
curves that were taken :mod:`together <analysis.estimate.together>`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.arrays import Array, Interval, Quantity
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.estimate.together import critical_sizes, difference, together
from analysis.plain import plain, shown
from cbs.errors import ConfigError
from cbs.registry.choices import read_choice

DEFAULT_REFERENCE = "adamw"

_RESOLUTION = 60


@dataclass(frozen=True, kw_only=True)
class RatioAt(Quantity):
    """Token ratio at one batch size: examples to target of the reference over those of the other, above 1 if the other
    needs fewer. An end of its interval is open if the best learning rate is at the edge of its grid, because a better
    one may lie beyond.

    Attributes:
        measured: ratio of the measured means; ``None`` where one optimizer was not run. Without draws it is the value.
    """

    batch_size: float
    measured: float | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRatio:
    """Token ratio of one optimizer.

    Attributes:
        at: ratios at the batch sizes at which both reached the target.
        curve: ratios between the smallest and the largest of these; empty if there are fewer than two.
        probability_not_decreasing: probability that the ratio is at least as large at the largest batch size that both
            reached as at the smallest; ``None`` if there are fewer than two.
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
    """Comparison of the critical batch sizes of two optimizers by the chosen definition.

    Attributes:
        larger, smaller: the optimizers; the names say what ``probability`` refers to, not what was found.
        probability: probability that the critical batch size of ``larger`` exceeds that of ``smaller``; ``None``
            without draws.
        ratio: ratio of the critical batch sizes; ``None`` if it is not bounded.
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
    both = reference, other
    first, second = ({point.batch_size: point for point in answer.points if point.reached} for answer in both)
    shared = [size for size in first if size in second]
    edges = tuple(frozenset(p.batch_size for p in answer.points if p.at_an_edge) for answer in both)
    measured = {size: first[size].steps_to_target / second[size].steps_to_target for size in shared}  # type: ignore[operator]
    ratio = TokenRatio(
        reference=reference.group.optimizer,
        optimizer=other.group.optimizer,
        at=tuple(RatioAt(value=value, batch_size=size, measured=value) for size, value in measured.items()),
        verdict=Verdict.gravest(answer.verdict for answer in both),
    )
    one, two = together(both)
    if one is None or two is None or not shared:
        return ratio

    def ratios(sizes: Array, at_edge: Sequence[Sequence[bool]]) -> tuple[RatioAt, ...]:
        found = []
        for size, mine, its, edge in zip(sizes.tolist(), one.drawn(sizes).T, two.drawn(sizes).T, at_edge, strict=True):
            value = difference(mine, its, reference.confidence).ratio
            low, high = (None if open_ else end for open_, end in zip(edge, value.interval, strict=True))
            found.append(RatioAt(value=value.value, interval=(low, high), batch_size=size, measured=measured.get(size)))
        return tuple(found)

    found = replace(ratio, at=ratios(np.array(shared), [[size in own for own in edges] for size in shared]))
    if len(shared) < 2:
        return found
    ends = np.array([shared[0], shared[-1]])
    rise = np.diff(one.drawn(ends) - two.drawn(ends))
    return replace(
        found,
        curve=ratios(np.geomspace(ends[0], ends[1], _RESOLUTION), [[bool(own) for own in edges]] * _RESOLUTION),
        probability_not_decreasing=float((rise >= 0).mean()),
    )


def critical_pairs(answers: Sequence[Answer]) -> list[CriticalPair]:
    """Compare the critical batch sizes of every ordered pair of optimizers by the chosen definition."""
    with np.errstate(divide="ignore"):
        drawn = [np.log(values) for values in critical_sizes(answers)]
    pairs = []
    for (larger, mine), (smaller, its) in itertools.permutations(zip(answers, drawn, strict=True), 2):
        apart = difference(mine, its, larger.confidence)
        pairs.append(
            CriticalPair(
                larger=larger.group.optimizer,
                smaller=smaller.group.optimizer,
                probability=apart.probability,
                ratio=apart.ratio.value,
                interval=apart.ratio.interval,
                verdict=Verdict.gravest((larger.verdict, smaller.verdict)),
            )
        )
    return pairs
