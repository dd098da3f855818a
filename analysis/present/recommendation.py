"""One call from a folder of results and step times to a recommended batch size: numbers, JSON, files."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.result import answers, scopes
from analysis.files import in_one_piece
from analysis.phrases import literal, plural, share, time_unit
from analysis.present.comparison import scope_columns, title
from analysis.present.tables import number, with_interval
from analysis.questions.recommendation import advise, probabilities_of_best
from analysis.questions.recommendation.plans import Advice, Doubling, Plan, Wish
from analysis.read.results import load
from analysis.read.throughput import Throughput
from cbs.target import Target

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA_VERSION = 1
"""Raised when a key of the JSON report changes its name, unit or meaning."""

REPORT = "recommendation.json"


@dataclass(frozen=True, kw_only=True)
class Winner:
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
class Recommendation:
    """What to train with, for one sweep, workload and target.

    Attributes:
        title: what tells it from the others.
        scope: columns that every table begins with.
        advice: one per optimizer.
        winners: one per objective; empty where nothing can be recommended.
    """

    title: str
    scope: dict[str, Any]
    advice: tuple[Advice, ...]
    winners: tuple[Winner, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.scope | {
            "optimizers": [advice.to_json() for advice in self.advice],
            "best": [
                {"objective": best.objective, "optimizer": best.optimizer, "probability": best.probability}
                for best in self.winners
            ],
        }


@dataclass(frozen=True, kw_only=True)
class RecommendationReport:
    """What :func:`recommend` found.

    Attributes:
        output: the folder that was written.
        wish: what was asked for.
        recommendations: one per sweep, workload and target.
        confidence: level of every interval.
        throughput: where step times come from.
        notes: what was left out, one line each.
        files: every file written.
    """

    output: Path
    wish: Wish
    recommendations: tuple[Recommendation, ...]
    confidence: float
    throughput: str
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values that :func:`json.dumps` writes with ``allow_nan=False``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "confidence": self.confidence,
            "devices": self.wish.devices,
            "price": self.wish.price,
            "price_ratio": self.wish.price_ratio,
            "throughput": self.throughput,
            "recommendations": [recommendation.to_json() for recommendation in self.recommendations],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }

    def print(self, console: Console) -> None:
        """The plans, what has to be said about them, and where the files are."""
        percent = f"[{100 * self.confidence:g} % interval]"
        for recommendation in self.recommendations:
            if recommendation.winners:
                heading = f"{recommendation.title}, up to {plural(self.wish.devices, 'device')} {percent}"
                console.print(heading, markup=False, soft_wrap=True)
                console.print(plan_table(recommendation, self.wish))
            for line in sentences(recommendation):
                console.print(line, markup=False, soft_wrap=True)
            console.print()
        for note in (f"{self.throughput}; the intervals hold the uncertainty of the steps alone", *self.notes):
            console.print(note, markup=False, soft_wrap=True)
        names = ", ".join(str(path.relative_to(self.output)) for path in self.files)
        console.print(f"in {self.output}: {names}", markup=False, soft_wrap=True)


def recommend(
    path: str | os.PathLike[str],
    throughput: Throughput,
    wish: Wish,
    *,
    targets: Sequence[float | Target] | None = None,
    config: AnalysisConfig | None = None,
    output: str | os.PathLike[str] | None = None,
    figures: bool = True,
) -> RecommendationReport:
    """The batch size of least time, cost and data, with intervals, per optimizer, and the best optimizer.

    Args:
        path: one sweep, or a folder of sweeps.
        throughput: seconds per step.
        wish: devices and prices.
        targets: as of :func:`analysis.analyze`.
        config: how the numbers are made.
        output: folder for tables and figures; ``None`` for ``analysis/recommend`` in the results.
        figures: whether to draw.

    Raises:
        ConfigError: if the target cannot be used.
        ResultsError: if the results cannot be read, or the output cannot be written.
    """
    config = config or AnalysisConfig()
    results = load(path)
    found = list(scopes(answers(results, config, targets=targets, noise=False)).values())
    recommendations = []
    for scope in found:
        advice = tuple(advise(answer, throughput, wish) for answer in scope)
        recommendations.append(
            Recommendation(
                title=title(scope, found),
                scope=scope_columns(scope[0]),
                advice=advice,
                winners=_winners(advice, wish, config.seed),
            )
        )
    report = RecommendationReport(
        output=Path(path) / "analysis" / "recommend" if output is None else Path(output),
        wish=wish,
        recommendations=tuple(recommendations),
        confidence=config.confidence,
        throughput=throughput.statement,
        notes=tuple(results.notes),
    )
    return _write(report, throughput, figures=figures)


def _winners(advice: Sequence[Advice], wish: Wish, seed: int) -> tuple[Winner, ...]:
    able = [entry for entry in advice if entry.plans]
    found = []
    for objective in wish.objectives if able else ():
        plans = [entry.plans[objective] for entry in able]
        best = min(range(len(plans)), key=lambda index: plans[index].objective_value)
        shares = probabilities_of_best(plans, seed=seed) if len(plans) > 1 else None
        probability = None if shares is None else shares[best]
        found.append(Winner(objective=objective, optimizer=able[best].optimizer, probability=probability))
    return tuple(found)


def plan_rows(recommendation: Recommendation) -> pd.DataFrame:
    """One row per optimizer and objective; numbers with their intervals as ``*_low`` and ``*_high``."""
    winners = {best.objective: best for best in recommendation.winners}
    rows = []
    for advice in recommendation.advice:
        for plan in advice.plans.values():
            best = winners[plan.objective]
            row = recommendation.scope | {
                "optimizer": advice.optimizer,
                "objective": plan.objective,
                "batch_size": plan.batch_size,
                "devices": plan.devices,
                "near_low": plan.near[0],
                "near_high": plan.near[1],
                "best_batch_size_low": plan.best_interval[0],
                "best_batch_size_high": plan.best_interval[1],
                "probability_near": plan.probability_near,
            }
            for name in ("steps", "examples", "seconds", "device_hours", "cost"):
                quantity = getattr(plan, name)
                ends = (None, None) if quantity is None else quantity.interval
                row |= {name: None if quantity is None else quantity.value, f"{name}_low": ends[0]}
                row |= {f"{name}_high": ends[1]}
            is_best = best.optimizer == advice.optimizer
            row |= {"best_optimizer": is_best, "probability_best": best.probability if is_best else None}
            rows.append(row | {"verdict": str(advice.answer.verdict), "remarks": "; ".join(plan.remarks)})
    return pd.DataFrame(rows, columns=None if rows else list(recommendation.scope))


def plan_table(recommendation: Recommendation, wish: Wish) -> Table:
    """One row per objective and optimizer."""
    from rich import box
    from rich.table import Table

    plans = [plan for advice in recommendation.advice for plan in advice.plans.values()]
    unit, length = time_unit(plan.seconds.value for plan in plans)
    priced = any(plan.price is not None for plan in plans)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("least", "optimizer"):
        table.add_column(name, no_wrap=True)
    for name in (
        "batch size\nwithin 5 %",
        "devices",
        f"time\n({unit})",
        "cost" if priced else "device-\nhours",
        "examples",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for objective in wish.objectives:
        for advice in recommendation.advice:
            plan = advice.plans.get(objective)
            if plan is not None:
                table.add_row(objective, literal(advice.optimizer), *map(literal, _cells(plan, length)))
    return table


def _cells(plan: Plan, length: float) -> list[str]:
    """The intervals of cost and examples are those of the time, in other units."""
    time, cost = plan.seconds.times(1 / length), plan.cost or plan.device_hours
    size = f"{plan.batch_size}\n{plan.near[0]}–{plan.near[1]}"
    seconds = with_interval(time.value, time.interval, between="\n")
    return [size, str(plan.devices), seconds, number(cost.value), number(plan.examples.value)]


def sentences(recommendation: Recommendation) -> list[str]:
    """Everything that stands below the table, one line each."""
    lines = [_winner(best) for best in recommendation.winners if best.probability is not None]
    remarks: dict[str, list[Plan]] = {}
    for plan in (plan for advice in recommendation.advice for plan in advice.plans.values()):
        for remark in plan.remarks:
            remarks.setdefault(remark, []).append(plan)
    for remark, plans in remarks.items():
        objectives, optimizers = (
            list(dict.fromkeys(getattr(plan, name) for plan in plans)) for name in ("objective", "optimizer")
        )
        lines.append(f"least {' and '.join(objectives)}, {', '.join(optimizers)}: {remark}")
    for advice in recommendation.advice:
        lines += [f"{advice.optimizer}: {remark}" for remark in advice.remarks]
        time = advice.plans.get("time")
        if time is not None and time.probability_near is not None:
            ends = time.best_interval
            lines.append(
                f"{advice.optimizer}: batch size {time.batch_size} is within 5 % of the least time with probability "
                f"{share(time.probability_near)}; the best batch size itself lies within [{number(ends[0])}, "
                f"{number(ends[1])}]"
            )
        if advice.doubling is not None:
            lines.append(_doubling(advice.optimizer, advice.doubling, said=remarks))
    return lines


def _winner(best: Winner) -> str:
    assert best.probability is not None
    return f"least {best.objective}: {best.optimizer}, with probability {share(best.probability)}"


def _doubling(optimizer: str, doubling: Doubling, said: Container[str]) -> str:
    time, cost = (with_interval(each.value, each.interval) for each in (doubling.time_factor, doubling.cost_factor))
    sizes = " to ".join(map(str, doubling.batch_sizes))
    remarks = "".join(f"; {remark}" for remark in doubling.remarks if remark not in said)
    return (
        f"{optimizer}: from {plural(doubling.devices, 'device')} to {2 * doubling.devices} the least time changes by "
        f"the factor {time}, device-hours by {cost} (batch size {sizes}){remarks}"
    )


def _write(report: RecommendationReport, throughput: Throughput, *, figures: bool) -> RecommendationReport:
    parts = [plan_rows(recommendation) for recommendation in report.recommendations]
    with in_one_piece(report.output) as draft:
        filled = [part for part in parts if len(part)] or parts[:1]
        pd.concat(filled).to_csv(draft / "recommendations.csv", index=False)
        if figures:
            from analysis.present.figures import write_one
            from analysis.present.figures.recommendation import RECOMMENDATION, compute

            (draft / "figures").mkdir()
            write_one(RECOMMENDATION, compute(report.recommendations, throughput), draft / "figures", "recommendation")
        names = sorted(str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file())
        report = replace(report, files=tuple(report.output / name for name in (*names, REPORT)))
        (draft / REPORT).write_text(json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")
    return report
