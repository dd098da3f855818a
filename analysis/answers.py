"""The answer per optimizer and target: critical batch size, interval, verdict, and what to do about what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from analysis import noise
from analysis.definitions import Definition, Sample
from analysis.fitting import Fit, fit_curve, interval
from analysis.load import Group, Results
from analysis.select import Point, Study, easier_or_equal, point, studies, within_reach
from cbs.store import finite_or_none
from cbs.target import Target

Interval = tuple[float | None, float | None]


class Verdict(StrEnum):
    """What an answer is worth; the first that applies. The advice names everything that applies."""

    NOT_REACHED = "target not reached"
    TOO_FEW_BATCH_SIZES = "too few batch sizes"
    NO_PERFECT_SCALING = "perfect-scaling part not reached"
    NO_SATURATION = "saturating part not reached"
    AT_GRID_EDGE = "LR optimum at edge of grid"
    TOO_FEW_SEEDS = "too few seeds"
    OK = "ok"


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
        noise_scale: what stands for the optimizer, see :func:`analysis.noise.near`.
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
    noise: dict[int, noise.Measured] = field(repr=False)
    noise_scale: noise.NoiseScale

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
    moments = {
        entry.batch_size: noise.measure(
            [Path(results.trials.at[row, "folder"]) for row in entry.trials],
            entry.steps_per_seed,
            entry.batch_size,
            confidence=confidence,
            resamples=resamples,
            seed=seed,
        )
        for entry in points
        if entry.reached
    }
    verdict, advice = _judge(points, numbers, about, target, within_reach(results, group, target.direction))
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
        noise_scale=noise.near(moments, numbers["critical_batch_size"]),
    )


def _numbers(fit: Fit | None, definition: Definition, confidence: float) -> dict[str, Any]:
    if fit is None:
        names = ("critical_batch_size", "min_steps", "min_examples")
        return (
            {name: None for name in names}
            | {f"{name}_interval": (None, None) for name in names[1:]}
            | {"interval": (None, None)}
        )
    measured = Sample(
        fit.batch_sizes, fit.log_steps[None], fit.estimate.min_steps[None], fit.estimate.min_examples[None]
    )
    resampled = Sample(fit.batch_sizes, fit.resampled_log_steps, fit.resampled.min_steps, fit.resampled.min_examples)
    value = float(definition(measured)[0])
    low, high = interval(definition(resampled), confidence)
    resampled_at_all = len(fit.resampled_log_steps) > 0
    outside_open = resampled_at_all and (
        (low is None and value < fit.batch_sizes[0]) or (high is None and value > fit.batch_sizes[-1])
    )
    return {
        "critical_batch_size": None if outside_open else _positive(value),
        "interval": (low, high),
        "min_steps": _positive(float(fit.estimate.min_steps)),
        "min_steps_interval": interval(fit.resampled.min_steps, confidence),
        "min_examples": _positive(float(fit.estimate.min_examples)),
        "min_examples_interval": interval(fit.resampled.min_examples, confidence),
    }


def _positive(value: float) -> float | None:
    return finite_or_none(value) or None


def _judge(
    points: list[Point], numbers: dict[str, Any], group: Group, target: Target, reachable: float | None
) -> tuple[Verdict, str]:
    """The verdict and the advice, from what was and was not seen."""
    reached = [entry for entry in points if entry.reached]
    found: list[tuple[Verdict | None, str]] = []
    if not reached:
        return Verdict.NOT_REACHED, _unreached_advice(group, target, reachable)
    if len(reached) < 3:
        exact = "; two points determine the curve exactly, so there is no interval" if len(reached) == 2 else ""
        found.append(
            (
                Verdict.TOO_FEW_BATCH_SIZES,
                f"reached at {len(reached)} batch size{'s'[: len(reached) > 1]}, 3 or more are needed{exact}",
            )
        )
    if len(reached) >= 2:
        low, high = _seen(numbers, reached)
        if not low:
            found.append(
                (
                    Verdict.NO_PERFECT_SCALING,
                    f"the smallest batch size that reached the target is past the critical one: add batch sizes below {reached[0].batch_size}",
                )
            )
        if not high:
            found.append(
                (
                    Verdict.NO_SATURATION,
                    f"the largest batch size that reached the target is short of the critical one: add batch sizes above {reached[-1].batch_size}",
                )
            )
    edges = [entry for entry in reached if entry.at_grid_edge]
    if edges:
        where = ", ".join(f"{entry.batch_size} ({entry.best_lr:g})" for entry in edges)
        found.append(
            (
                Verdict.AT_GRID_EDGE,
                f"the best LR is the lowest or highest tried at batch size {where}: extend the LR grid there",
            )
        )
    if max(entry.seeds for entry in reached) < 2:
        found.append((Verdict.TOO_FEW_SEEDS, "one seed: run 3 or more before comparing optimizers"))
    missed = [entry for entry in points if not entry.reached]
    if missed:
        where = ", ".join(f"{entry.batch_size} ({entry.status})" for entry in missed)
        found.append(
            (
                None,
                f"not reached at batch size {where}"
                + (f"; {_words(target, reachable)} was reached at every batch size" if reachable is not None else ""),
            )
        )
    partly = [entry for entry in reached if entry.seeds_reached < entry.seeds]
    if partly:
        where = ", ".join(f"{entry.batch_size} ({entry.seeds_reached} of {entry.seeds})" for entry in partly)
        found.append((None, f"only some seeds reached the target at the best LR of batch size {where}"))
    verdict = next((verdict for verdict in Verdict if any(verdict is entry for entry, _ in found)), Verdict.OK)
    return verdict, "; ".join(text for _, text in found)


def _seen(numbers: dict[str, Any], reached: list[Point]) -> tuple[bool, bool]:
    """Whether the measured batch sizes span the critical one: the perfect-scaling part, the saturating part."""
    low, high = numbers["interval"]
    if numbers["min_examples"] is None:
        return False, True
    if numbers["min_steps"] is None:
        return True, False
    critical = numbers["min_examples"] / numbers["min_steps"]
    open_ends = len(reached) >= 3
    return (
        critical >= reached[0].batch_size and not (open_ends and low is None),
        critical <= reached[-1].batch_size and not (open_ends and high is None),
    )


def _unreached_advice(group: Group, target: Target, reachable: float | None) -> str:
    if not easier_or_equal(target, group.target):
        return f"the trials stopped at the sweep's own target, {group.target}: run a sweep with the target {target}"
    if reachable is None:
        return "no trial got as far as an evaluation: see the messages of the failed trials"
    return f"analyze with an easier target ({_words(target, reachable)} was reached at every batch size), or run with more steps or other learning rates"


def _words(target: Target, value: float) -> str:
    return f"{target.metric} {'<' if target.direction == 'below' else '>'} {value:g}"
