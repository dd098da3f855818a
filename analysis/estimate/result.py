"""The answer per optimizer and target: critical batch size, interval, verdict, and the noise scale beside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.attention import attention_logits
from analysis.estimate.definitions import chosen
from analysis.estimate.diagnosis import not_reached, with_value
from analysis.estimate.estimates import Critical, Estimate, Reading, estimates
from analysis.estimate.noise import PLAIN, NoiseScale, NoiseScales, Recorded, measure, near, over
from analysis.estimate.quantity import Interval
from analysis.estimate.studies import Point, best_values, studies, within_reach
from analysis.estimate.study_fits import beliefs
from analysis.read.results import Group, Results
from cbs.errors import ConfigError
from cbs.record import CLIPPED, GeometryColumns
from cbs.store import read_steps
from cbs.target import Target


@dataclass(frozen=True, kw_only=True)
class Answer(Estimate):
    """One optimizer at one target.

    Attributes:
        group: the trials it is drawn from.
        target: metric, value, direction.
        config: how the numbers were made.
        noise: by batch size, for the batch sizes that reached the target.
        attention_logits: by batch size, likewise, see :func:`analysis.estimate.attention.attention_logits`.
        clipped: by batch size, likewise, the share of steps to the target whose gradients were clipped, mean over
            seeds; without batch sizes whose trials clip none.
    """

    group: Group
    target: Target
    config: AnalysisConfig
    noise: dict[int, NoiseScales] = field(default_factory=dict, repr=False)
    attention_logits: dict[int, pd.DataFrame] = field(default_factory=dict, repr=False)
    clipped: dict[int, float] = field(default_factory=dict)

    @property
    def definition(self) -> str:
        return self.config.definition

    @property
    def confidence(self) -> float:
        return self.config.confidence

    @property
    def critical(self) -> Critical:
        """By the chosen definition; those by the others are in ``definitions``."""
        return self.definitions[self.config.definition]

    @property
    def critical_batch_size(self) -> float | None:
        return self.critical.value

    @property
    def interval(self) -> Interval:
        return self.critical.interval

    @property
    def geometry(self) -> GeometryColumns | None:
        """The geometry of the optimizer's own that was stored; the plain one without another, ``None`` without any."""
        geometries = [found.geometry for found in self.noise.values() if found.geometry]
        return min(geometries, key=lambda entry: entry.geometry == PLAIN, default=None)

    @property
    def noise_scale(self) -> NoiseScale:
        """Plain, what stands for the optimizer, see :func:`analysis.estimate.noise.near`."""
        return near({size: found.summary for size, found in self.noise.items()}, self.critical_batch_size)

    @property
    def matched_noise_scale(self) -> NoiseScale:
        """Likewise in :attr:`geometry`; the same as ``noise_scale`` in the plain one."""
        return near({size: found.matched for size, found in self.noise.items()}, self.critical_batch_size)

    @property
    def matched_geometry(self) -> str:
        """Name of :attr:`geometry`."""
        return self.geometry.geometry if self.geometry else PLAIN

    @property
    def noise_scale_ratio(self) -> NoiseScale:
        """See :func:`analysis.estimate.noise.over`."""
        return over(self.noise_scale, self.critical)

    @property
    def matched_noise_scale_ratio(self) -> NoiseScale:
        return over(self.matched_noise_scale, self.critical)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``None`` where undefined, never NaN."""
        group, fit = self.group, self.fit
        noise: dict[str, Any] = {}
        for kind, scale, ratio in (
            ("simple", self.noise_scale, self.noise_scale_ratio),
            ("matched", self.matched_noise_scale, self.matched_noise_scale_ratio),
        ):
            name = f"{kind}_noise_scale"
            noise |= scale.named(name) | {f"{name}_note": scale.note} | ratio.named(f"{name}_ratio")
        return {
            "sweep": group.sweep,
            "workload": group.workload,
            "optimizer": group.optimizer,
            "optimizer_options": group.choice.options,
            "target": self.target.to_json(),
            "definition": self.definition,
            "critical_batch_size": self.critical_batch_size,
            "interval": list(self.interval),
            "definitions": [entry.to_json() for entry in self.definitions.values()],
            "interval_method": fit.interval_method if fit else "none: no fit",
            **super().to_json(),
            "example_unit": group.example_unit,
            "tokens_per_example": group.tokens_per_example,
            "metric_unit": group.metric_unit,
            "residual_rms": fit.residual_rms if fit else None,
            "verdict": str(self.verdict),
            "advice": self.advice,
            "points": [self._point(entry) for entry in self.points],
            "matched_geometry": self.matched_geometry,
            "matched_symbol": self.geometry.symbol if self.geometry else None,
            "matched_exponent": self.geometry.exponent if self.geometry else None,
            **noise,
        }

    def _point(self, entry: Point) -> dict[str, Any]:
        measured = self.noise.get(entry.batch_size)
        return entry.to_json() | {
            "simple_noise_scale": measured.summary.value if measured else None,
            "matched_noise_scale": measured.matched.value if measured else None,
            "clipped_share": self.clipped.get(entry.batch_size),
        }


def scopes(answers: Sequence[Answer]) -> dict[tuple[str, str, str], list[Answer]]:
    """What may stand side by side: the answers of one sweep, workload and target, by these three, in their order."""
    found: dict[tuple[str, str, str], list[Answer]] = {}
    for answer in answers:
        found.setdefault((answer.group.sweep, answer.group.workload, str(answer.target)), []).append(answer)
    return found


def answered(found: Sequence[tuple[Group, Sequence[Reading]]], config: AnalysisConfig) -> Iterator[list[Answer]]:
    """The answers of every group at its targets, without what the per-step columns say.

    What is believed of the exponent of a curve comes from the curves of the same sweep and target.
    """
    curves = [(group.sweep, reading) for group, readings in found for reading in readings]
    scopes = [(sweep, reading.target) for sweep, reading in curves]
    believed = iter(beliefs([reading.studies for _, reading in curves], scopes, config))
    for group, readings in found:
        made = estimates(readings, config, [next(believed) for _ in readings])
        yield [
            Answer(group=group, target=reading.target, config=config, **vars(estimate))
            for reading, estimate in zip(readings, made, strict=True)
        ]


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
    best: dict[str, np.ndarray] = {}
    trial, step, value = (results.evaluations[name].to_numpy() for name in ("trial", "step", "value"))
    curves = []
    for index, group in enumerate(results.groups):
        wanted, direction = _targets(group, targets), group.target.direction
        for target in wanted:
            if target not in steps:
                steps[target] = target.crossings(trial, step, value, len(results.trials))
            _check_start(results, index, target, steps[target])
        if direction not in best:
            best[direction] = best_values(results.evaluations, len(results.trials), direction)
        reachable = within_reach(results.of_group(index), best[direction], direction)
        curves.append(
            (
                group,
                [
                    Reading(
                        target=target,
                        studies=studies(results, index, target, steps[target]),
                        not_reached=not_reached(group, target, reachable),
                        easier="" if reachable is None else with_value(target, reachable),
                    )
                    for target in wanted
                ],
            )
        )
    found = []
    for made in answered(curves, config):
        read = functools.cache(lambda row: read_steps(Path(results.trials.at[row, "folder"]) / "steps.parquet"))
        found += [_with_columns(answer, read) for answer in made] if noise else made
    return found


def _with_columns(answer: Answer, read: Callable[[int], Recorded]) -> Answer:
    """With what the per-step columns of its trials say; ``read`` gives those of a row of the trial table."""
    noise, logits, clipped = {}, {}, {}
    for entry in answer.points:
        if entry.reached:
            recorded = [read(row) for row in entry.trials]
            noise[entry.batch_size] = measure(
                recorded, entry.steps_per_seed, entry.batch_size, confidence=answer.confidence
            )
            logits[entry.batch_size] = attention_logits(
                [columns for columns, _ in recorded], entry.steps_per_seed, entry.batch_size
            )
            pairs = zip(recorded, entry.steps_per_seed, strict=True)
            if shares := [c[CLIPPED][: math.ceil(steps)].mean() for (c, _), steps in pairs if CLIPPED in c]:
                clipped[entry.batch_size] = float(np.mean(shares))
    return replace(answer, noise=noise, attention_logits=logits, clipped=clipped)


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
