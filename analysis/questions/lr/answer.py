"""How the learning rate follows the batch size, and what the way it is chosen does to the critical batch size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.findings import Findings
from analysis.estimate.laws.learning_rate import Factor, LearningRateLaw, learning_rate_law
from analysis.estimate.protocols import Protocol, protocols
from analysis.estimate.result import Answer
from analysis.plain import plain, shown
from analysis.read.results import load
from cbs.trial.target import Target

MULTIPLES = (2, 4, 8)
"""How many times larger a batch the factors are for."""


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """One optimizer at one target; the factors, none without a law, are from the critical batch size, where it is
    known, and from the largest with a known optimum, to each of :data:`MULTIPLES`."""

    answer: Answer = field(repr=False)
    law: LearningRateLaw
    factors: tuple[Factor, ...]
    protocols: tuple[Protocol, ...]

    def to_json(self) -> dict[str, Any]:
        return self.answer.group.whose | {"target": self.answer.target.to_json()} | shown(self)


@dataclass(frozen=True, kw_only=True)
class LearningRates(Findings):
    """What :func:`learning_rates` found, one entry per sweep, optimizer and target."""

    entries: tuple[LearningRate, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"learning_rates": plain(self.entries)}


def learning_rates(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    reference: int | None = None,
) -> LearningRates:
    """The law of the best learning rate, the factors for larger batches, and the protocols, per optimizer and target.

    ``path``, ``config``, ``targets`` and ``metric`` are those of :func:`analysis.analyze`, errors too; ``reference`` is
    that of :func:`analysis.estimate.protocols.protocols`.
    """
    results = load(path, metric=metric)
    entries = []
    for answer in answers(results, config, targets=targets, noise=False):
        law = learning_rate_law(answer.studies, config)
        starts = [size for size in (answer.critical_batch_size, *law.inside[-1:]) if size is not None]
        factors = [law.factor(size, multiple) for size in starts for multiple in MULTIPLES]
        entries.append(
            LearningRate(
                answer=answer,
                law=law,
                factors=tuple(factor for factor in factors if factor is not None),
                protocols=protocols(answer, reference),
            )
        )
    return LearningRates(config=config, entries=tuple(entries), notes=tuple(results.notes))
