"""Worlds of known truth: steps to target as sweeps would have found them, around curves whose critical batch size is
exact; and what an analysis of them says against that truth.

A curve maps ``B / B_crit`` to ``S / S_min``: it falls to 1 for infinite batches and is 2 at 1. A sweep draws where
``B_crit`` lies between the batch sizes and how the best learning rate drifts with the batch size; its learning rates
are a window of a lattice around the best one, as the search of a sweep leaves them. Away from the best learning rate
steps grow by a parabola in ``ln lr``. Noise has a part that all learning rates of a (batch size, seed) share.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.fit_table import fit_table
from analysis.estimate.result import Answer
from analysis.questions.compare.ratios import critical_pair

Curve = Callable[[np.ndarray], np.ndarray]
"""``B / B_crit`` -> ``S / S_min``."""

CRITICAL = 2.0**12.5
MIN_STEPS = 1000.0
LRS = 5
PENALTY = 0.1
"""What ``ln S`` gains at twice or half the best learning rate."""
SHARED, OWN = 0.8, 0.6
"""Standard deviations, in those of the noise, of what learning rates share and of what each has for itself."""
EIGHT = tuple(np.arange(8) - 3.5)


@dataclass(frozen=True, kw_only=True)
class World:
    """One kind of sweep.

    Attributes:
        name: in tests, and seed of its draws.
        curves: by optimizer; a table of one has no column for it.
        octaves: ``log2 B / CRITICAL`` of the batch sizes.
        noise: standard deviation of ``ln S``.
        slowed: factor on the steps from twice the middle batch size on, where batches ran on another footing.
        endless: whether steps fall for ever; the fewest are then those at the largest batch size that is measured.
        equal: whether its curves have the same critical batch size.
    """

    name: str
    curves: Mapping[str, Curve]
    octaves: tuple[float, ...] = EIGHT
    noise: float = 0.06
    slowed: float = 1.0
    endless: bool = False
    equal: bool = False


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The curve of one optimizer in one sweep, at the best learning rate and without noise."""

    curve: Curve
    critical: float
    min_steps: float

    def steps(self, batch_sizes: np.ndarray) -> np.ndarray:
        """Steps to target, shape as ``batch_sizes``."""
        return self.min_steps * self.curve(batch_sizes / self.critical)


def sweep(world: World, seeds: int, index: int) -> tuple[pd.DataFrame, dict[str, Truth]]:
    """The table of a sweep, and the truth by optimizer. The same arguments give the same table."""
    rng = np.random.default_rng([index, seeds, zlib.crc32(world.name.encode())])
    truths, frames = {}, []
    for place, (name, curve) in enumerate(world.curves.items()):
        if not (world.equal and truths):
            critical = CRITICAL * 2.0 ** rng.uniform(-0.5, 0.5)
        truth = Truth(curve=curve, critical=critical, min_steps=MIN_STEPS * 1.3**place)
        frame = _trials(world, truth, seeds, rng)
        truths[name] = _within(truth, CRITICAL * 2.0 ** world.octaves[-1]) if world.endless else truth
        frames.append(frame.assign(optimizer=name) if len(world.curves) > 1 else frame)
    return pd.concat(frames, ignore_index=True), truths


def _within(truth: Truth, largest: float) -> Truth:
    """The same steps with the fewest of them at the largest batch size."""
    end = largest / truth.critical
    fewest = float(truth.curve(np.array(end)))
    at = float(brentq(lambda x: float(truth.curve(np.array(x))) - 2 * fewest, end * 1e-6, end))
    return Truth(
        curve=lambda x: truth.curve(at * x) / fewest, critical=at * truth.critical, min_steps=fewest * truth.min_steps
    )


def _trials(world: World, truth: Truth, seeds: int, rng: np.random.Generator) -> pd.DataFrame:
    sizes = np.round(CRITICAL * 2.0 ** np.array(world.octaves))
    count = len(sizes)
    best = rng.uniform(0, 1) + rng.uniform(0.3, 0.7) * np.log2(sizes)
    lattice = np.round(best)[:, None] + np.arange(LRS) - LRS // 2
    logs = np.log(truth.steps(sizes))[:, None] + PENALTY * (lattice - best[:, None]) ** 2
    noise = SHARED * rng.standard_normal((count, 1, seeds)) + OWN * rng.standard_normal((count, LRS, seeds))
    logs = logs[..., None] + world.noise * noise
    logs = logs + np.where(sizes < 2 * CRITICAL, 0.0, math.log(world.slowed))[:, None, None]
    at = np.indices(logs.shape).reshape(3, -1)
    return pd.DataFrame(
        {
            "batch_size": sizes[at[0]],
            "steps": np.exp(logs).ravel(),
            "seed": at[2],
            "lr": 1e-3 * 2.0 ** lattice[at[0], at[1]],
            "censored": False,
        }
    )


def power(exponent: float) -> Curve:
    return lambda x: 1 + x**-exponent


def knee(sharpness: float, exponent: float = 1.0) -> Curve:
    """The asymptotes of the power law, joined more sharply than by it above 1 and more bluntly below; 2 is the square
    root of a sum of squares."""
    return lambda x: (1 + (2**sharpness - 1) * x ** (-sharpness * exponent)) ** (1 / sharpness)


def falling(share: float) -> Curve:
    """The hyperbola, with steps that fall by ``share`` per e-fold of the batch size, for ever."""
    return lambda x: (1 + 1 / x) * x**-share


WORLDS = {
    world.name: world
    for world in (
        World(name="exponent 1", curves={"": power(1.0)}),
        World(name="steps fall by 15 % per e-fold for ever", curves={"": falling(0.15)}, endless=True),
        World(name="square root of 1 + 3/x^2", curves={"": knee(2.0)}),
        World(name="square root of 1 + 3/x", curves={"": knee(2.0, 0.5)}),
        World(name="3 batch sizes a factor 4 apart, exponent 0.7", curves={"": power(0.7)}, octaves=(-2.0, 0.0, 2.0)),
        World(name="two optimizers, knees 0.7 and 1.5", curves={"first": knee(0.7), "second": knee(1.5)}, equal=True),
        World(name="large batches 20 % slower", curves={"": power(1.0)}, noise=0.02, slowed=1.2),
    )
}


def fit(world: World, seeds: int, index: int, resamples: int) -> list[dict[str, Any]]:
    """What an analysis says of a sweep, one record per optimizer."""
    table, truths = sweep(world, seeds, index)
    answers = fit_table(table, AnalysisConfig(resamples=resamples)).answers
    wrong = _ratio_silent(answers, list(truths.values()))
    return [
        record(answer, truth) | {"ratio_silent": wrong} for answer, truth in zip(answers, truths.values(), strict=True)
    ]


def record(answer: Answer, truth: Truth) -> dict[str, Any]:
    return {
        "interval": answer.interval,
        "covered": holds(answer.interval, truth.critical),
        "verdict": str(answer.verdict),
    }


def _ratio_silent(answers: Sequence[Answer], truths: Sequence[Truth]) -> bool | None:
    """Whether two optimizers are both ``ok`` and the interval of the ratio of their critical batch sizes is wrong."""
    if len(answers) != 2:
        return None
    held = holds(critical_pair(*answers).interval, truths[0].critical / truths[1].critical)
    return all(answer.verdict is Verdict.OK for answer in answers) and not held


def holds(ends: tuple[float | None, float | None], truth: float) -> bool:
    low, high = ends
    return (low is None or low <= truth) and (high is None or truth <= high)


def measure(name: str, sweeps: int, resamples: int) -> dict[str, Any]:
    """Shares over sweeps of three seeds: ``covered``, ``silent`` (``ok`` with a wrong interval), ``ratio_silent`` (of
    two optimizers, likewise of their ratio), ``ok``; the median ``half_width`` of ln B_crit, and all ``verdicts``."""
    records = [entry for index in range(sweeps) for entry in fit(WORLDS[name], 3, index, resamples)]
    closed = [entry["interval"] for entry in records if all(entry["interval"])]
    return {
        "covered": mean(entry["covered"] for entry in records),
        "silent": mean(entry["verdict"] == "ok" and not entry["covered"] for entry in records),
        "ratio_silent": mean(bool(entry["ratio_silent"]) for entry in records),
        "ok": mean(entry["verdict"] == "ok" for entry in records),
        "half_width": median(math.log(high / low) / 2 for low, high in closed),
        "verdicts": Counter(entry["verdict"] for entry in records),
    }
