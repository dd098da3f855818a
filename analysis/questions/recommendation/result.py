"""From a folder of results and step times to the batch size to train with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from analysis.config import AnalysisConfig
from analysis.estimate.quantity import Plain
from analysis.plain import plain
from analysis.questions.recommendation import advise, probabilities_of_best
from analysis.questions.recommendation.plans import Advice, Wish
from analysis.questions.scopes import Findings, Scope, read_scopes
from analysis.read.throughput import Throughput
from cbs.target import Target


@dataclass(frozen=True, kw_only=True)
class Winner(Plain):
    """The optimizer that is best for an objective.

    Attributes:
        objective: see :mod:`analysis.questions.recommendation`.
        optimizer: the best one.
        probability: that it is, every optimizer at its own recommended batch size; ``None`` without resamples, or
            with one optimizer.
    """

    objective: str
    optimizer: str
    probability: float | None


@dataclass(frozen=True, kw_only=True)
class Recommendation(Scope):
    """What to train with, for one sweep, workload and target.

    Attributes:
        advice: one per optimizer.
        winners: one per objective; empty where nothing can be recommended.
    """

    advice: tuple[Advice, ...] = field(repr=False)
    winners: tuple[Winner, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return super().to_json() | {"optimizers": plain(self.advice), "best": plain(self.winners)}


@dataclass(frozen=True, kw_only=True)
class Recommendations(Findings):
    """What :func:`recommend` found.

    Attributes:
        wish: what was asked for.
        recommendations: one per sweep, workload and target.
        throughput: seconds per step.
    """

    wish: Wish = field(repr=False)
    recommendations: tuple[Recommendation, ...]
    throughput: Throughput = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values that :func:`json.dumps` writes with ``allow_nan=False``."""
        return super().to_json() | asdict(self.wish) | {"throughput": self.throughput.statement}


def recommend(
    path: str | os.PathLike[str],
    throughput: Throughput,
    wish: Wish,
    config: AnalysisConfig | None = None,
    *,
    targets: Sequence[float | Target] | None = None,
) -> Recommendations:
    """The batch size of least time, cost and data, with intervals, per optimizer, and the best optimizer.

    Args:
        path: one sweep, or a folder of sweeps.
        throughput: seconds per step.
        wish: devices and prices.
        config: how the numbers are made.
        targets: as of :func:`analysis.analyze`.

    Raises:
        ConfigError: if the target cannot be used.
        ResultsError: if the results cannot be read.
    """
    config = config or AnalysisConfig()
    found, notes = read_scopes(path, config, targets)
    recommendations = []
    for scope in found:
        advice = tuple(advise(answer, throughput, wish) for answer in scope.answers)
        winners = _winners(advice, wish, config.seed)
        recommendations.append(Recommendation(**vars(scope), advice=advice, winners=winners))
    return Recommendations(
        wish=wish, recommendations=tuple(recommendations), config=config, throughput=throughput, notes=notes
    )


def _winners(advice: Sequence[Advice], wish: Wish, seed: int) -> tuple[Winner, ...]:
    found = []
    for objective in wish.objectives:
        plans = [entry.plans[objective] for entry in advice if entry.plans]
        if plans:
            shares = probabilities_of_best(plans, seed=seed) if len(plans) > 1 else None
            at = min(range(len(plans)), key=lambda index: plans[index].objective_value)
            probability = None if shares is None else shares[at]
            found.append(Winner(objective=objective, optimizer=plans[at].optimizer, probability=probability))
    return tuple(found)
