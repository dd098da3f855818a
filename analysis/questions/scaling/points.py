"""Critical batch sizes of many models, optimizers and targets, as points of a law."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.arrays import Array, percentiles
from analysis.config import AnalysisConfig
from analysis.estimate.laws.three_term import Runs
from analysis.estimate.quantity import Interval
from analysis.estimate.result import Answer, answers
from analysis.read.results import load
from cbs.errors import ConfigError
from cbs.target import Target

AXES = ("data", "parameters", "loss", "compute")
FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Forward and backward pass of a dense model: C = 6 N D (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One workload variant, optimizer and target with a critical batch size.

    Attributes:
        sweep: name of the sweep.
        family: name of the workload.
        workload: the same with what tells it from others.
        workload_options: every option the workload was given, nested ones by dotted name.
        optimizer: name, with what tells it from others.
        target: metric, value, direction.
        run: number of the trials behind it, the same for all targets of one curve.
        unit: of batch sizes: ``sequence``, ``token``, ...
        data_unit: of ``data``: ``token``, or the example.
        critical_batch_size: in ``unit``.
        interval: of it.
        parameters: N.
        data: examples to the target in ``data_unit``; ``None`` where not seen.
        data_interval: of it.
        compute: 6 N D in FLOPs; ``None`` without N or tokens.
        held_data: where the point is interpolated between targets, the data it is interpolated at.
        log_critical_resamples: shape ``[R]``.
        log_data_resamples: shape ``[R]``; empty without ``data``.
    """

    sweep: str
    family: str = field(repr=False)
    workload: str
    workload_options: dict[str, Any]
    optimizer: str
    target: Target
    run: int = field(repr=False)
    critical_batch_size: float
    interval: Interval
    unit: str
    parameters: int | None
    data: float | None
    data_interval: Interval
    data_unit: str
    compute: float | None
    held_data: float | None = None
    log_critical_resamples: Array = field(repr=False)
    log_data_resamples: Array = field(repr=False)

    def value(self, axis: str) -> float | None:
        """Of one of :data:`AXES`; ``None`` where it is not known or has no logarithm."""
        if axis == "loss":
            return self.target.value if self.target.direction == "below" and self.target.value > 0 else None
        found = getattr(self, axis)
        return None if found is None else float(found)

    def log_resamples(self, axis: str) -> Array:
        """Of the natural logarithm of an axis or an option, up to a constant, shape ``[R]``."""
        return self.log_data_resamples if axis in ("data", "compute") else np.zeros_like(self.log_critical_resamples)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What :func:`read` returns.

    Attributes:
        points: of all results.
        left_out: one line for everything that has no point, with the reason.
        runs: steps to target by optimizer, for the law in three terms; metrics that fall and sizes that are known.
        notes: of the results.
    """

    points: tuple[ScalingPoint, ...]
    left_out: tuple[str, ...]
    runs: dict[str, Runs] = field(repr=False)
    notes: tuple[str, ...]


def read(
    paths: Sequence[str | os.PathLike[str]],
    config: AnalysisConfig,
    *,
    targets: Sequence[float | Target] | None = None,
    data_at_batch: float | None = None,
) -> Found:
    """Every critical batch size at ``paths``.

    Args:
        paths: sweeps, or folders of sweeps.
        config: how the numbers are made.
        targets: see :func:`analysis.estimate.result.answers`.
        data_at_batch: batch size in examples whose examples to target are the data; ``None`` for the
            critical one.

    Raises:
        ConfigError: if a target cannot be used, or a sweep is given twice.
        ResultsError: if there are no usable results.
    """
    found: list[Answer] = []
    notes: list[str] = []
    folders: set[Path] = set()
    for path in paths:
        results = load(path)
        own = {group.folder.resolve() for group in results.groups}
        if own & folders:
            raise ConfigError(f"{sorted(own & folders)[0]} is in two of the given folders; give every sweep once")
        folders |= own
        notes += results.notes
        found += answers(results, config, targets=targets, noise=False)
    sizes = {answer.group.tokens_per_example for answer in found}
    in_tokens = len(sizes) > 1 and None not in sizes
    if in_tokens:
        notes.append("examples differ in length, so batch sizes are in tokens")
    kept = [answer for answer in found if not _reason(answer)]
    # optimizers of one name with unlike options, as sweeps of their own may have them, are told apart by the options
    kinds = {(answer.group.optimizer, _options_of_optimizer(answer)) for answer in kept}
    unlike = {name for name, _ in kinds if sum(name == other for other, _ in kinds) > 1}
    runs = {number: place for place, number in enumerate(dict.fromkeys(id(answer.group) for answer in found))}
    points = [_point(answer, runs[id(answer.group)], unlike, in_tokens, data_at_batch) for answer in kept]
    return Found(
        points=tuple(points),
        left_out=tuple(
            f"{answer.group.sweep}, {answer.group.workload}, {answer.group.optimizer}, {answer.target}: {reason}"
            for answer in found
            if (reason := _reason(answer))
        ),
        runs=_runs(found, in_tokens),
        notes=tuple(notes),
    )


def _options_of_optimizer(answer: Answer) -> str:
    return json.dumps(answer.group.optimizer_options, sort_keys=True)


def _reason(answer: Answer) -> str:
    """Why there is no point; empty if there is one."""
    if answer.critical.value is None:
        return f"no critical batch size ({answer.verdict})"
    if None in answer.critical.interval:
        fit = answer.fit
        exact = fit is not None and not len(fit.resampled_log_steps)
        return f"no interval ({answer.verdict})" if exact else f"its interval is open ({answer.verdict})"
    return ""


def _point(answer: Answer, run: int, unlike: set[str], in_tokens: bool, data_at_batch: float | None) -> ScalingPoint:
    group, fit, critical = answer.group, answer.fit, answer.critical
    assert fit is not None
    assert critical.value is not None
    data, ends = answer.examples_at_critical.value, answer.examples_at_critical.interval
    resampled = fit.resampled.examples_at_critical
    if data_at_batch is not None:
        size = np.array([data_at_batch])
        data = data_at_batch * float(np.exp(fit.estimate.log_steps(size))[0])
        resampled = data_at_batch * np.exp(fit.resampled.log_steps(size))[:, 0]
        low, high = percentiles(resampled, answer.confidence)
        ends = (float(low), float(high))
    # of different runs the resamples are independent, those of one run go together
    order = np.random.default_rng([answer.config.seed, run]).permutation(len(critical.resampled))
    tokens = group.tokens_per_example or 1
    factor = tokens if in_tokens else 1
    compute = None
    if group.parameters and data and group.tokens_per_example:
        compute = FLOPS_PER_PARAMETER_AND_TOKEN * group.parameters * data * tokens
    return ScalingPoint(
        sweep=group.sweep,
        family=group.workload.split("(")[0],
        workload=group.workload,
        workload_options=dict(_flat(group.workload_options)),
        optimizer=group.optimizer + (_options_of_optimizer(answer) if group.optimizer in unlike else ""),
        target=answer.target,
        run=run,
        critical_batch_size=critical.value * factor,
        interval=_scaled(critical.interval, factor),
        unit="token" if in_tokens else group.example_unit,
        parameters=group.parameters,
        data=None if data is None else data * tokens,
        data_interval=_scaled(ends, tokens),
        data_unit="token" if group.tokens_per_example else group.example_unit,
        compute=compute,
        log_critical_resamples=_logs(critical.resampled)[order] + np.log(factor),
        log_data_resamples=np.empty(0) if data is None else _logs(resampled)[order] + np.log(tokens),
    )


def at_data(points: Sequence[ScalingPoint], data: float, confidence: float) -> tuple[list[ScalingPoint], list[str]]:
    """One point per curve at the same data instead of the same loss, and one line per curve that has none.

    The critical batch size between the two targets whose data lie around ``data`` is interpolated, log against log, on
    every resample.
    """
    found, left_out = [], []
    for run in dict.fromkeys(point.run for point in points):
        known = [(point.data, point) for point in points if point.run == run and point.data is not None]
        curve = sorted(known, key=lambda pair: pair[0])
        around = next((pair for pair in itertools.pairwise(curve) if pair[0][0] <= data <= pair[1][0]), None)
        if around is None:
            first = next(point for point in points if point.run == run)
            seen = f"data {curve[0][0]:.3g} to {curve[-1][0]:.3g} {first.data_unit}s" if curve else "no data"
            left_out.append(
                f"{first.sweep}, {first.workload}, {first.optimizer}: not at data {data:g}, its targets take {seen}"
            )
            continue
        below, above = around[0][1], around[1][1]
        share = _share(np.log(data), np.log(around[0][0]), np.log(around[1][0]))
        shares = _share(np.log(data), below.log_data_resamples, above.log_data_resamples)
        critical = _between(math.log(below.critical_batch_size), math.log(above.critical_batch_size), share)
        resampled = _between(below.log_critical_resamples, above.log_critical_resamples, shares)
        low, high = np.exp(percentiles(resampled, confidence))
        loss = below.target.value + float(share) * (above.target.value - below.target.value)
        found.append(
            replace(
                below,
                target=replace(below.target, value=loss),
                critical_batch_size=float(np.exp(critical)),
                interval=(float(low), float(high)),
                data=data,
                data_interval=(data, data),
                compute=None if below.compute is None or below.data is None else below.compute * data / below.data,
                held_data=data,
                log_critical_resamples=resampled,
                log_data_resamples=np.full_like(resampled, np.log(data)),
            )
        )
    return found, left_out


def _share(value: Any, low: Any, high: Any) -> Array:
    """Where ``value`` lies between ``low`` (0) and ``high`` (1), at most half the distance outside."""
    distance = np.maximum(high - low, 1e-9)
    return np.clip((value - low) / distance, -0.5, 1.5)


def _between(low: Any, high: Any, share: Array) -> Array:
    return np.asarray(low + share * (high - low))


def _logs(values: Array) -> Array:
    """Natural logarithms; 0 and infinity, of the few resamples beyond a closed interval, count as the outermost."""
    usable = np.isfinite(values) & (values > 0)
    inside = values[usable]
    return np.asarray(
        np.log(np.clip(np.where(np.isnan(values), np.median(inside), values), inside.min(), inside.max()))
    )


def _scaled(ends: Interval, factor: float) -> Interval:
    low, high = ends
    return (None if low is None else low * factor, None if high is None else high * factor)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, int | float | str | bool | None) else json.dumps(value)


def _runs(found: Sequence[Answer], in_tokens: bool) -> dict[str, Runs]:
    """By workload and optimizer, every batch size that reached a target."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    trials: dict[tuple[int, int], int] = {}
    for answer in found:
        group, loss = answer.group, answer.target.value
        if group.parameters is None or answer.target.direction != "below" or loss <= 0:
            continue
        factor = group.tokens_per_example if in_tokens and group.tokens_per_example else 1
        own = rows.setdefault(f"{group.workload.split('(')[0]}, {group.optimizer}", [])
        for point in answer.points:
            if point.steps_to_target is not None:
                number = trials.setdefault((id(group), point.batch_size), len(trials))
                size, steps = point.batch_size * factor, point.steps_to_target
                own.append((group.parameters, loss, size, steps, point.seeds_reached, number))
    names = [column.name for column in fields(Runs)]
    return {
        name: Runs(**dict(zip(names, np.array(table, dtype=float).T, strict=True)))
        for name, table in rows.items()
        if table
    }
