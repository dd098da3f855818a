"""From a folder of results to a comparison of its optimizers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.findings import Findings, Scope, read_scopes
from analysis.estimate.time_curves import plane
from analysis.questions.compare.ratios import (
    CriticalPair,
    TokenRatio,
    critical_pairs,
    named,
    pick_reference,
    token_ratio,
)
from analysis.read.throughput import Throughput
from cbs.errors import ConfigError
from cbs.trial.target import Target


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
        f"{ratio.optimizer}: no batch size that both it and {ratio.reference} reached the target at"
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
