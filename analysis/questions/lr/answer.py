"""How the best learning rate depends on the batch size, and how the way it is chosen affects the critical batch
size."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.findings import Findings
from analysis.estimate.learning_rate_law import Factor, LearningRateLaw, learning_rate_law
from analysis.estimate.objective import end_studies
from analysis.estimate.protocols import Protocol, protocols
from analysis.estimate.result import Answer
from analysis.plain import plain, shown
from analysis.read.results import Results, load
from cbs.trial.target import Target

MULTIPLES = (2, 4, 8)
"""Multiples of the batch size for which factors are given."""


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Results for one optimizer at one target.

    The factors (none without a law) start from the critical batch size, if known, and from the largest batch size with
    a known optimum, and go to each of :data:`MULTIPLES`.
    """

    answer: Answer = field(repr=False)
    law: LearningRateLaw
    factors: tuple[Factor, ...]
    protocols: tuple[Protocol, ...]

    @property
    def edges(self) -> frozenset[float]:
        """Batch sizes whose best learning rate is only known to be a bound, as the verdict of the answer has it: an
        edge is none where other batch sizes say where the best learning rate lies."""
        known = {point.batch_size for point in self.answer.points if point.at_grid_edge is False}
        return frozenset(best.batch_size for best in self.law.optima if best.edge and best.batch_size not in known)

    def to_json(self) -> dict[str, Any]:
        return self.answer.group.whose | {"target": self.answer.target.to_json()} | shown(self)


@dataclass(frozen=True, kw_only=True)
class LearningRates(Findings):
    """Result of :func:`learning_rates`, with one entry per sweep, optimizer and target."""

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
    """Fit the law of the best learning rate, and return factors for larger batches and protocols, per optimizer and
    target.

    ``path``, ``config``, ``targets`` and ``metric`` are as for :func:`analysis.analyze`, including errors;
    ``reference`` is as for :func:`analysis.estimate.protocols.protocols`.
    """
    results = load(path, metric=metric)
    entries, notes = [], [*results.notes]
    alone = [results.ends_alone(index) for index in range(len(results.groups))]
    if all(alone):
        entries = [_by_ends(results, index, config) for index in range(len(alone))]
        notes.append("one evaluation per run: learning rates are ranked by the metric there, not by steps to a target")
    for answer in () if all(alone) else answers(results, config, targets=targets, noise=False):
        law = learning_rate_law(answer.studies, config)
        unranked = [str(study.batch_size) for study in answer.studies if study.unranked]
        if unranked:
            notes.append(
                f"{answer.group.optimizer}: at batch size {', '.join(unranked)} several learning rates were past the "
                "target when first evaluated, and which is best is not known: evaluate earlier, or choose a harder one"
            )
        starts = [size for size in (answer.critical_batch_size, *law.inside[-1:]) if size is not None]
        entries.append(_entry(answer, law, starts, protocols(answer, reference)))
    return LearningRates(config=config, entries=tuple(entries), notes=tuple(notes))


def _entry(answer: Answer, law: LearningRateLaw, starts: Sequence[float], ways: tuple[Protocol, ...]) -> LearningRate:
    factors = [law.factor(size, multiple) for size in starts for multiple in MULTIPLES]
    return LearningRate(answer=answer, law=law, factors=tuple(filter(None, factors)), protocols=ways)


def _by_ends(results: Results, index: int, config: AnalysisConfig) -> LearningRate:
    """Return the best learning rates of a group by the metric at the only evaluation of each run; such runs have no
    critical batch size, and so no protocols."""
    group = results.groups[index]
    studies = end_studies(results, index)
    law = learning_rate_law(studies, config, math.inf)
    answer = Answer(
        group=group,
        target=group.target,
        config=config,
        studies=tuple(studies),
        points=(),
        draws=None,
        definitions={},
        verdict=Verdict.NOT_REACHED,
        advice="",
    )
    return _entry(answer, law, law.inside[-1:], ())
