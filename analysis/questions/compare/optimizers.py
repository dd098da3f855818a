r"""From a folder of results to a comparison of its optimizers.

Compare two optimizers: how many more examples one needs, and whether its critical batch size is larger.

The token ratio of optimizers A and B at a batch size is :math:`R_L(B) = T_A(B) / T_B(B)`, with :math:`T` the tokens (or
examples) to the target (Essential AI, "Practical Efficiency of Muon", 2505.02222, equation 2). Both take the same
number of tokens per step, so it is also the ratio of the steps to target. Everything here is a function of draws of the
curves that were taken :mod:`together <analysis.estimate.comparison>`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.comparison import critical_sizes, difference, together
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.estimate.scopes import Scope, read_scopes
from analysis.estimate.time_curves import plane
from analysis.formatting import plain, shown
from analysis.present.findings import Findings
from analysis.quantities import Array, Interval, Quantity
from analysis.read.throughput import Throughput
from cbs.errors import ConfigError
from cbs.registry.choices import read_choice
from cbs.trial.target import Target

DEFAULT_REFERENCE = "adamw"
_RESOLUTION = 60  # Points of the curve of ratios


@dataclass(frozen=True, kw_only=True)
class Comparison(Scope):
    """Comparison of the optimizers of one sweep, workload and target.

    Attributes:
        reference: the optimizer in the numerator of the token ratios.
        token_ratios: one for each other optimizer.
        critical_batch_sizes: one for every ordered pair of optimizers.
        compute_time: rows of :func:`analysis.estimate.time_curves.plane`; empty without a throughput.
        notes: what could not be compared.
    """

    definition: str
    optimizers: tuple[str, ...]
    reference: str
    token_ratios: tuple[TokenRatio, ...]
    critical_batch_sizes: tuple[CriticalPair, ...]
    compute_time: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparisons(Findings):
    """Result of :func:`compare`, with one comparison per sweep, workload and target."""

    comparisons: tuple[Comparison, ...]
    throughput: Throughput | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"throughput": self.throughput.statement if self.throughput else ""}


def compare(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    others: Sequence[str | os.PathLike[str]] = (),
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    reference: str | None = None,
    throughput: Throughput | None = None,
) -> Comparisons:
    """Compare token ratios, critical batch sizes and, if step times are given, the plane of compute and time.

    Optimizers of one sweep and workload are compared; with ``others``, those of all folders.

    Args:
        path, config, targets, metric: as for :func:`analysis.analyze`, including errors.
        others: further folders; they need the same metric and a common target.
        reference: the optimizer that the others are compared with; ``None`` for ``adamw`` if it exists, otherwise the
            first.
        throughput: seconds per step; ``None`` to leave out the plane of compute and time.

    Raises:
        ConfigError: if no optimizer has the name ``reference``, or folders have nothing in common.
    """
    scopes, notes = read_scopes(path, config, targets, others, metric)
    if reference is not None and not any(named(scope.answers, reference) for scope in scopes):
        names = dict.fromkeys(answer.group.optimizer for scope in scopes for answer in scope.answers)
        raise ConfigError(f"reference {reference!r} is not among the optimizers: {', '.join(names)}")
    return Comparisons(
        comparisons=tuple(_comparison(scope, reference, throughput) for scope in scopes),
        config=config,
        throughput=throughput,
        notes=notes,
    )


def _comparison(scope: Scope, reference: str | None, throughput: Throughput | None) -> Comparison:
    answers = scope.answers
    chosen = pick_reference(answers, reference)
    others = [answer for answer in answers if answer is not chosen]
    ratios = [token_ratio(chosen, other) for other in others]
    notes = []
    if reference is not None and not named(answers, reference):
        notes.append(f"{reference} is not among these optimizers: compared with {chosen.group.optimizer}")
    if not others:
        notes.append(f"{chosen.group.optimizer} is the only optimizer: there is none to compare it with")
    notes += [
        f"{ratio.optimizer}: it and {ratio.reference} reached the target at no common batch size"
        for ratio in ratios
        if not ratio.at
    ]
    points = [] if throughput is None else [point for answer in answers for point in plane(answer, throughput)]
    if throughput is not None:
        missing = {answer.group.optimizer for answer in answers} - {point["optimizer"] for point in points}
        notes += [f"{name}: no batch size that reached the target has a step time" for name in sorted(missing)]
        notes += sorted({point["assumption"] for point in points if point["assumption"] and point["on_frontier"]})
    return Comparison(
        **vars(scope),
        definition=chosen.config.definition,
        optimizers=tuple(answer.group.optimizer for answer in answers),
        reference=chosen.group.optimizer,
        token_ratios=tuple(ratios),
        critical_batch_sizes=tuple(critical_pairs(answers)),
        compute_time=tuple(points),
        notes=tuple(notes),
    )


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
        at_sizes = []
        for size, mine, its, edge in zip(sizes.tolist(), one.drawn(sizes).T, two.drawn(sizes).T, at_edge, strict=True):
            value = difference(mine, its, reference.confidence).ratio
            low, high = (None if open_ else end for open_, end in zip(edge, value.interval, strict=True))
            at_sizes.append(
                RatioAt(value=value.value, interval=(low, high), batch_size=size, measured=measured.get(size))
            )
        return tuple(at_sizes)

    paired = replace(ratio, at=ratios(np.array(shared), [[size in own for own in edges] for size in shared]))
    if len(shared) < 2:
        return paired
    ends = np.array([shared[0], shared[-1]])
    rise = np.diff(one.drawn(ends) - two.drawn(ends))
    return replace(
        paired,
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
