"""The answer per optimizer and target: critical batch size, interval, verdict, and the noise scale beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.attention import attention_logits
from analysis.estimate.definitions import chosen
from analysis.estimate.diagnosis import Verdict, not_reached, with_value
from analysis.estimate.estimates import Critical, Estimate, Hyperbola, Interval, beliefs, estimates
from analysis.estimate.fitting import Fit
from analysis.estimate.noise import PLAIN, Measured, NoiseScale, Recorded, measure, near, over
from analysis.estimate.studies import Point, Study, best_values, studies, within_reach
from analysis.read.results import Group, Results
from cbs.errors import ConfigError
from cbs.record import GeometryColumns
from cbs.store import read_steps
from cbs.target import Target


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One optimizer at one target.

    Attributes:
        group: the trials it is drawn from.
        target: metric, value, direction.
        config: how the numbers were made.
        estimate: fit, critical batch sizes, verdict.
        noise: by batch size, for the batch sizes that reached the target.
        noise_scale: plain, what stands for the optimizer, see :func:`analysis.estimate.noise.near`.
        geometry: the geometry of the optimizer's own that was stored; the plain one without another, ``None`` without
            any.
        matched_noise_scale: likewise in this geometry; the same as ``noise_scale`` in the plain one.
        attention_logits: by batch size, likewise, see :func:`analysis.estimate.attention.attention_logits`.
        noise_scale_ratio, matched_noise_scale_ratio: see :func:`analysis.estimate.noise.over`.
    """

    group: Group
    target: Target
    config: AnalysisConfig
    estimate: Estimate
    noise: dict[int, Measured] = field(repr=False)
    noise_scale: NoiseScale
    geometry: GeometryColumns | None
    matched_noise_scale: NoiseScale
    attention_logits: dict[int, pd.DataFrame] = field(repr=False)

    @property
    def definition(self) -> str:
        return self.config.definition

    @property
    def confidence(self) -> float:
        return self.config.confidence

    @property
    def critical(self) -> Critical:
        """By the chosen definition; those by the others are in ``estimate.critical``."""
        return self.estimate.critical[self.config.definition]

    @property
    def critical_batch_size(self) -> float | None:
        return self.critical.value

    @property
    def interval(self) -> Interval:
        return self.critical.interval

    @property
    def studies(self) -> tuple[Study, ...]:
        return self.estimate.studies

    @property
    def points(self) -> tuple[Point, ...]:
        return self.estimate.points

    @property
    def fit(self) -> Fit | None:
        return self.estimate.fit

    @property
    def min_steps(self) -> float | None:
        return self.estimate.min_steps.value

    @property
    def min_steps_interval(self) -> Interval:
        return self.estimate.min_steps.interval

    @property
    def exponent(self) -> float | None:
        return self.estimate.exponent.value

    @property
    def exponent_interval(self) -> Interval:
        return self.estimate.exponent.interval

    @property
    def examples_at_critical(self) -> float | None:
        return self.estimate.examples_at_critical.value

    @property
    def examples_at_critical_interval(self) -> Interval:
        return self.estimate.examples_at_critical.interval

    @property
    def hyperbola(self) -> Hyperbola | None:
        return self.estimate.hyperbola

    @property
    def verdict(self) -> Verdict:
        return self.estimate.verdict

    @property
    def advice(self) -> str:
        return self.estimate.advice

    @property
    def matched_geometry(self) -> str:
        """Name of :attr:`geometry`."""
        return self.geometry.geometry if self.geometry else PLAIN

    @property
    def noise_scale_ratio(self) -> NoiseScale:
        return over(self.noise_scale, self.critical_batch_size, self.interval)

    @property
    def matched_noise_scale_ratio(self) -> NoiseScale:
        return over(self.matched_noise_scale, self.critical_batch_size, self.interval)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``None`` where undefined, never NaN."""
        group, fit = self.group, self.fit
        return {
            "sweep": group.sweep,
            "workload": group.workload,
            "optimizer": group.optimizer,
            "optimizer_options": group.optimizer_options,
            "target": self.target.to_json(),
            "definition": self.definition,
            "critical_batch_size": self.critical_batch_size,
            "interval": list(self.interval),
            "definitions": [entry.to_json() for entry in self.estimate.critical.values()],
            "interval_method": fit.interval_method if fit else "none: no fit",
            **self.estimate.to_json(),
            "example_unit": group.example_unit,
            "tokens_per_example": group.tokens_per_example,
            "metric_unit": group.metric_unit,
            "residual_rms": fit.residual_rms if fit else None,
            "verdict": str(self.verdict),
            "advice": self.advice,
            "points": [self._point(entry) for entry in self.points],
            "simple_noise_scale": self.noise_scale.value,
            "simple_noise_scale_interval": list(self.noise_scale.interval),
            "simple_noise_scale_note": self.noise_scale.note,
            "simple_noise_scale_ratio": self.noise_scale_ratio.value,
            "simple_noise_scale_ratio_interval": list(self.noise_scale_ratio.interval),
            "matched_geometry": self.matched_geometry,
            "matched_symbol": self.geometry.symbol if self.geometry else None,
            "matched_exponent": self.geometry.exponent if self.geometry else None,
            "matched_noise_scale": self.matched_noise_scale.value,
            "matched_noise_scale_interval": list(self.matched_noise_scale.interval),
            "matched_noise_scale_note": self.matched_noise_scale.note,
            "matched_noise_scale_ratio": self.matched_noise_scale_ratio.value,
            "matched_noise_scale_ratio_interval": list(self.matched_noise_scale_ratio.interval),
        }

    def _point(self, entry: Point) -> dict[str, Any]:
        measured = self.noise.get(entry.batch_size)
        return {
            "batch_size": entry.batch_size,
            "steps_to_target": entry.steps_to_target,
            "steps_per_seed": list(entry.steps_per_seed),
            "examples_to_target": entry.examples_to_target,
            "best_lr": entry.best_lr,
            "at_grid_edge": entry.at_grid_edge,
            "seeds": entry.seeds,
            "seeds_reached": entry.seeds_reached,
            "status": entry.status,
            "steps_lower_bound": entry.steps_lower_bound,
            "simple_noise_scale": measured.summary.value if measured else None,
            "matched_noise_scale": measured.matched.value if measured else None,
        }


def scopes(answers: Sequence[Answer]) -> dict[tuple[str, str, str], list[Answer]]:
    """What may stand side by side: the answers of one sweep, workload and target, by these three, in their order."""
    found: dict[tuple[str, str, str], list[Answer]] = {}
    for answer in answers:
        found.setdefault((answer.group.sweep, answer.group.workload, str(answer.target)), []).append(answer)
    return found


def answers(
    results: Results, config: AnalysisConfig, *, targets: Sequence[float | Target] | None = None, noise: bool = True
) -> list[Answer]:
    """Everything about every group at every target, in this order.

    Args:
        results: all trials.
        config: how the numbers are made.
        targets: values of each sweep's own metric, or whole targets; ``None`` takes each sweep's own target. Targets
            easier than a sweep's own are read from the same curves.
        noise: whether to read the per-step columns (noise scale, diagnostics), which takes most of the time.

    Raises:
        ConfigError: if a target cannot be used.
        ResultsError: if the per-step columns of a trial at the best learning rate cannot be read.
    """
    chosen(config)
    steps: dict[Target, np.ndarray] = {}
    wanted = [_targets(group, targets) for group in results.groups]
    trial, step, value = (results.evaluations[name].to_numpy() for name in ("trial", "step", "value"))
    curves: list[list[list[Study]]] = []
    for index, own in enumerate(wanted):
        for target in own:
            if target not in steps:
                steps[target] = target.crossings(trial, step, value, len(results.trials))
            _check_start(results, index, target, steps[target])
        curves.append([studies(results, index, target, steps[target]) for target in own])
    believed = iter(
        beliefs(
            [curve for own in curves for curve in own],
            [(group.sweep, target) for group, own in zip(results.groups, wanted, strict=True) for target in own],
            config,
        )
    )
    best: dict[str, np.ndarray] = {}
    found = []
    for index, group in enumerate(results.groups):
        direction = group.target.direction
        if direction not in best:
            best[direction] = best_values(results.evaluations, len(results.trials), direction)
        reachable = within_reach(results.of_group(index), best[direction], direction)
        measured = estimates(
            curves[index],
            config,
            targets=[target.value for target in wanted[index]],
            not_reached=[not_reached(group, target, reachable) for target in wanted[index]],
            easier=["" if reachable is None else with_value(target, reachable) for target in wanted[index]],
            believed=[next(believed) for _ in wanted[index]],
        )
        read = functools.cache(lambda row: read_steps(Path(results.trials.at[row, "folder"]) / "steps.parquet"))
        found += [
            _answer(group, target, config, estimate, read if noise else None)
            for target, estimate in zip(wanted[index], measured, strict=True)
        ]
    return found


def _answer(
    group: Group, target: Target, config: AnalysisConfig, estimate: Estimate, read: Callable[[int], Recorded] | None
) -> Answer:
    """The estimate with what the per-step columns of its trials say; ``read`` gives those of a row of the trial
    table."""
    reached = [entry for entry in estimate.points if entry.reached] if read else []
    recorded = [[read(row) for row in entry.trials] for entry in reached] if read else []
    moments = {
        entry.batch_size: measure(found, entry.steps_per_seed, entry.batch_size, confidence=config.confidence)
        for entry, found in zip(reached, recorded, strict=True)
    }
    geometries = [measured.geometry for measured in moments.values() if measured.geometry]
    critical = estimate.critical[config.definition].value
    return Answer(
        group=group,
        target=target,
        config=config,
        estimate=estimate,
        noise=moments,
        noise_scale=near({size: measured.summary for size, measured in moments.items()}, critical),
        geometry=min(geometries, key=lambda entry: entry.geometry == PLAIN, default=None),
        matched_noise_scale=near({size: measured.matched for size, measured in moments.items()}, critical),
        attention_logits={
            entry.batch_size: attention_logits([each for each, _ in found], entry.steps_per_seed, entry.batch_size)
            for entry, found in zip(reached, recorded, strict=True)
        },
    )


def _targets(group: Group, wanted: Sequence[float | Target] | None) -> list[Target]:
    own = group.target
    if not wanted:
        return [own]
    found = []
    for entry in wanted:
        target = entry if isinstance(entry, Target) else replace(own, value=float(entry))
        if (target.metric, target.direction) != (own.metric, own.direction):
            raise ConfigError(f"target {target} does not fit sweep {group.sweep!r}, whose target is {own}")
        if target not in found:
            found.append(target)
    return found


def _check_start(results: Results, group: int, target: Target, steps: np.ndarray) -> None:
    if (steps[results.of_group(group).index] == 0).any():
        sweep = results.groups[group].sweep
        raise ConfigError(
            f"target {target} is reached before the first step in sweep {sweep!r}; choose a harder target"
        )
