"""The answer per optimizer and target: critical batch size, interval, verdict, and what to do about what is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.attention import attention_logits
from analysis.definitions import Definition, Sample
from analysis.fitting import Fit, fit_curve, interval
from analysis.load import Group, Results
from analysis.noise import PLAIN, Measured, NoiseScale, measure, near, over
from analysis.select import Point, Study, point, studies, within_reach
from analysis.verdict import Verdict, judge
from cbs.store import finite_or_none
from cbs.target import Target

Interval = tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One optimizer at one target.

    Attributes:
        group: the trials it is drawn from.
        target: metric, value, direction.
        definition: name of the critical batch size definition.
        confidence: level of the intervals.
        studies: steps to target of every learning rate and seed, per batch size.
        points: one per batch size.
        fit: the curve through the points; ``None`` when the target was reached at fewer than two batch sizes.
        critical_batch_size: examples; ``None`` where the data do not bound it.
        interval: of ``critical_batch_size``; an open end is ``None``.
        min_steps, min_examples: asymptotes of the fit, with their intervals; ``None`` where not seen.
        verdict: see :class:`Verdict`.
        advice: what to change; empty when nothing is missing.
        noise: by batch size, for the batch sizes that reached the target.
        noise_scale: plain, what stands for the optimizer, see :func:`analysis.noise.near`.
        matched_geometry: the geometry of the optimizer's own that was stored; ``"l2"`` without another.
        matched_noise_scale: likewise in this geometry; the same as ``noise_scale`` in ``"l2"``.
        attention_logits: by batch size, likewise, see :func:`analysis.attention.attention_logits`.
        noise_scale_ratio, matched_noise_scale_ratio: over the critical batch size, see :func:`analysis.noise.over`.
    """

    group: Group
    target: Target
    definition: str
    confidence: float
    studies: tuple[Study, ...] = field(repr=False)
    points: tuple[Point, ...]
    fit: Fit | None = field(repr=False)
    critical_batch_size: float | None
    interval: Interval
    min_steps: float | None
    min_steps_interval: Interval
    min_examples: float | None
    min_examples_interval: Interval
    verdict: Verdict
    advice: str
    noise: dict[int, Measured] = field(repr=False)
    noise_scale: NoiseScale
    matched_geometry: str
    matched_noise_scale: NoiseScale
    attention_logits: dict[int, pd.DataFrame] = field(repr=False)

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
            "target": {"metric": self.target.metric, "value": self.target.value, "direction": self.target.direction},
            "definition": self.definition,
            "critical_batch_size": self.critical_batch_size,
            "interval": list(self.interval),
            "interval_method": fit.interval_method if fit else "none: no fit",
            "min_steps": self.min_steps,
            "min_examples": self.min_examples,
            "min_steps_interval": list(self.min_steps_interval),
            "min_examples_interval": list(self.min_examples_interval),
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


def answer(
    results: Results,
    group: int,
    target: Target,
    steps: np.ndarray,
    definition: tuple[str, Definition],
    *,
    confidence: float,
    resamples: int,
    seed: int,
) -> Answer:
    """Everything about one group at one target.

    Args:
        results: all trials.
        group: index into ``results.groups``.
        target: the target.
        steps: steps to target of all trials, shape ``[trials]``, see :func:`analysis.select.crossings`.
        definition: name and function.
        confidence: of every interval.
        resamples: of every bootstrap.
        seed: of every bootstrap.

    Raises:
        ResultsError: if the per-step columns of a trial at the best learning rate cannot be read.
    """
    about = results.groups[group]
    found = studies(results, group, target, steps)
    points = [point(study) for study in found]
    used = [study for study, entry in zip(found, points, strict=True) if entry.reached]
    fit = None
    if len(used) >= 2:
        sizes, measured = [study.batch_size for study in used], [study.steps for study in used]
        fit = fit_curve(sizes, measured, confidence=confidence, resamples=resamples, seed=seed)
    numbers = _numbers(fit, definition[1], confidence)
    reached = [entry for entry in points if entry.reached]
    folders = [[Path(results.trials.at[row, "folder"]) for row in entry.trials] for entry in reached]
    moments = {
        entry.batch_size: measure(places, entry.steps_per_seed, entry.batch_size, confidence=confidence)
        for entry, places in zip(reached, folders, strict=True)
    }
    geometries = [measured.geometry for measured in moments.values() if measured.geometry != PLAIN]
    critical = numbers["critical_batch_size"]
    verdict, advice = judge(points, _seen(numbers, fit), about, target, within_reach(results, group, target.direction))
    return Answer(
        group=about,
        target=target,
        definition=definition[0],
        confidence=confidence,
        studies=tuple(found),
        points=tuple(points),
        fit=fit,
        **numbers,
        verdict=verdict,
        advice=advice,
        noise=moments,
        noise_scale=near({size: measured.summary for size, measured in moments.items()}, critical),
        matched_geometry=geometries[0] if geometries else PLAIN,
        matched_noise_scale=near({size: measured.matched for size, measured in moments.items()}, critical),
        attention_logits={
            entry.batch_size: attention_logits(places, entry.steps_per_seed, entry.batch_size)
            for entry, places in zip(reached, folders, strict=True)
        },
    )


def _numbers(fit: Fit | None, definition: Definition, confidence: float) -> dict[str, Any]:
    """Critical batch size and asymptotes with their intervals; what lies beyond an open end is ``None``."""
    if fit is None:
        open_ends = dict.fromkeys(("interval", "min_steps_interval", "min_examples_interval"), (None, None))
        return dict.fromkeys(("critical_batch_size", "min_steps", "min_examples")) | open_ends
    steps, examples = fit.estimate.min_steps[None], fit.estimate.min_examples[None]
    value = float(definition(Sample(fit.batch_sizes, fit.log_steps[None], steps, examples))[0])
    resampled = Sample(fit.batch_sizes, fit.resampled_log_steps, fit.resampled.min_steps, fit.resampled.min_examples)
    low, high = interval(definition(resampled), confidence)
    fitted = float(examples[0] / steps[0]) if steps[0] > 0 else math.inf
    resamples = len(fit.resampled_log_steps) > 0
    plateau = fitted == 0 or (resamples and low is None and fitted < fit.batch_sizes[0])
    perfect = fitted == math.inf or (resamples and high is None and fitted > fit.batch_sizes[-1])
    return {
        "critical_batch_size": None if plateau or perfect else finite_or_none(value),
        "interval": (low, high),
        "min_steps": None if perfect else float(steps[0]),
        "min_steps_interval": interval(fit.resampled.min_steps, confidence),
        "min_examples": None if plateau else float(examples[0]),
        "min_examples_interval": interval(fit.resampled.min_examples, confidence),
    }


def _seen(numbers: dict[str, Any], fit: Fit | None) -> tuple[bool, bool]:
    """Whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve."""
    if fit is None:
        return False, False
    if numbers["min_steps"] is None or numbers["min_examples"] is None:
        return numbers["min_examples"] is not None, numbers["min_steps"] is not None
    critical = numbers["min_examples"] / numbers["min_steps"]
    low, high = numbers["interval"] if len(fit.resampled_log_steps) else (critical, critical)
    return critical >= fit.batch_sizes[0] and low is not None, critical <= fit.batch_sizes[-1] and high is not None
