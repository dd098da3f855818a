"""Worlds of known truth: steps to target as sweeps would have found them, around curves whose critical batch size is
exact; and what an analysis of them says against that truth.

    python -m benchmarks.worlds [--sweeps 200] [--first 0] [--world NAME]

prints the table of curves of ``docs/evidence.md``; 200 sweeps of a world take about 20 seconds of a processor.

A curve maps ``B / B_crit`` to ``S / S_min``: it falls to 1 for infinite batches and is 2 at 1. A sweep draws where
``B_crit`` lies between the batch sizes and how the best learning rate drifts with the batch size; its learning rates
are a window of a lattice around the best one, as the search of a sweep leaves them. Away from the best learning rate
steps grow by a parabola in ``ln lr``. Noise has a part that all learning rates of a (batch size, seed) share.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.fit_table import fit_table
from analysis.estimate.fitting import interval
from analysis.estimate.result import Answer
from analysis.extensions.theory.noisy_quadratic.model import NoisyQuadratic
from analysis.extensions.theory.noisy_quadratic.search import tuned
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
        name: in tests and in the table, and seed of its draws.
        curves: by optimizer; a table of one has no column for it.
        octaves: ``log2 B / CRITICAL`` of the batch sizes.
        noise: standard deviation of ``ln S``.
        slowed: factor on the steps from twice the middle batch size on, where batches ran on another footing.
        endless: whether steps fall for ever; the fewest are then those at the largest batch size that is measured.
        equal: whether its curves have the same critical batch size.
        seeds: runs of every batch size and learning rate.
    """

    name: str
    curves: Mapping[str, Curve]
    octaves: tuple[float, ...] = EIGHT
    noise: float = 0.06
    slowed: float = 1.0
    endless: bool = False
    equal: bool = False
    seeds: int = 3


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


def slowed(x: np.ndarray) -> np.ndarray:
    """The hyperbola, with runs that large batches make ever slower, by 10 % at the critical batch size."""
    return (1 + 1 / x) * (1 + 0.1 * x**0.3)


def two_exponents(x: np.ndarray) -> np.ndarray:
    """Half of the rise with the exponent 0.6, half with 1.2."""
    return 1 + 0.5 * x**-0.6 + 0.5 * x**-1.2


def falling_exponent(x: np.ndarray) -> np.ndarray:
    """From 1 at small batches to 0.6 at large ones."""
    return 1 + x**-0.8 * np.cosh(np.log(x)) ** 0.2


def two_slopes(x: np.ndarray) -> np.ndarray:
    """Perfect scaling up to 1, and steps that fall with the power 0.3 from there, for ever: the model of appendix F of
    2505.02222."""
    return np.maximum(1 / x, x**-0.3)


def quadratic(x: np.ndarray) -> np.ndarray:
    """SGD at its best learning rate on a noisy quadratic of 10,000 coordinates, whose loss falls from 4.7 to 0.01."""
    return np.exp(_quadratic()(np.log(x)))


@functools.cache
def _quadratic() -> CubicSpline:
    """``ln S / S_min`` over ``ln B / B_crit``, five octaves on either side."""
    model = NoisyQuadratic.binned(10_000)

    def steps(batch_size: float) -> float:
        found = tuned(model, "sgd", 0.01, batch_size)
        assert found is not None
        return found.steps

    least = steps(np.inf)
    middle = brentq(lambda log: math.log(steps(math.exp(log)) / (2 * least)), 0.0, 14.0, xtol=1e-10)
    logs = math.log(2.0) * np.arange(-5, 5.01, 0.25)
    return CubicSpline(logs, [math.log(steps(math.exp(middle + log)) / least) for log in logs])


def _spaced(count: int, octaves: float) -> tuple[float, ...]:
    return tuple(octaves * (np.arange(count) - (count - 1) / 2))


QUIET = 0.02
WORLDS = {
    world.name: world
    for world in (
        *(World(name=f"exponent {a:g}", curves={"": power(a)}) for a in (0.7, 0.85, 1.0, 1.2, 1.5)),
        World(name="exponent 1, 2 % noise", curves={"": power(1.0)}, noise=QUIET),
        World(name="noisy quadratic, tuned SGD", curves={"": quadratic}),
        World(name="steps fall by 5 % per e-fold for ever", curves={"": falling(0.05)}, endless=True),
        World(name="steps fall by 15 % per e-fold for ever", curves={"": falling(0.15)}, endless=True),
        World(name="square root of 1 + 3/x^2", curves={"": knee(2.0)}),
        World(name="square root of 1 + 3/x", curves={"": knee(2.0, 0.5)}),
        World(name="large batches ever slower", curves={"": slowed}, endless=True),
        World(name="blunt knee, g = 0.7", curves={"": knee(0.7)}),
        World(name="two exponents, 0.6 and 1.2", curves={"": two_exponents}),
        World(name="exponent falls from 1 to 0.6", curves={"": falling_exponent}),
        World(name="exponent falls from 1 to 0.6, 2 % noise", curves={"": falling_exponent}, noise=QUIET),
        World(name="perfect scaling, then the power 0.3", curves={"": two_slopes}, endless=True),
        World(name="3 batch sizes a factor 4 apart, exponent 0.7", curves={"": power(0.7)}, octaves=_spaced(3, 2)),
        World(name="3 batch sizes a factor 8 apart, exponent 0.7", curves={"": power(0.7)}, octaves=_spaced(3, 3)),
        World(name="4 batch sizes a factor 2 apart, exponent 0.7", curves={"": power(0.7)}, octaves=_spaced(4, 1)),
        World(name="5 batch sizes a factor 2 apart, exponent 0.7", curves={"": power(0.7)}, octaves=_spaced(5, 1)),
        World(name="quick recipe, exponent 0.7", curves={"": power(0.7)}, octaves=(-5, -3, -1, 1, 3), seeds=2),
        World(name="two optimizers, knees 0.7 and 1.5", curves={"first": knee(0.7), "second": knee(1.5)}, equal=True),
        World(
            name="two optimizers, exponents 0.85 and 1.2",
            curves={"first": power(0.85), "second": power(1.2)},
            equal=True,
        ),
        World(name="large batches 20 % slower", curves={"": power(1.0)}, noise=QUIET, slowed=1.2),
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
    assert answer.fit is not None
    power = interval(answer.fit.resampled_power.critical, answer.confidence)
    value = answer.critical_batch_size
    return {
        "interval": answer.interval,
        "covered": holds(answer.interval, truth.critical),
        "power": power,
        "power_covered": holds(power, truth.critical),
        "verdict": str(answer.verdict),
        "ratio": math.inf if value is None else value / truth.critical,  # without an upper end there is no value
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


def measure(name: str, sweeps: int, resamples: int, first: int = 0) -> dict[str, Any]:
    """Shares over sweeps: ``covered``, ``power_covered`` (by the power law alone), ``silent`` (``ok`` with a wrong
    interval), ``ratio_silent`` (of two optimizers, likewise of their ratio), ``ok``; medians of the ``half_width`` of
    ln B_crit and of the ``ratio`` of estimate to truth; how much ``wider`` than the power law's; all ``verdicts``."""
    world = WORLDS[name]
    records = [entry for index in range(first, first + sweeps) for entry in fit(world, world.seeds, index, resamples)]
    closed = [entry["interval"] for entry in records if all(entry["interval"])]
    pairs = [(*entry["interval"], *entry["power"]) for entry in records if all(entry["interval"] + entry["power"])]
    return {
        "covered": mean(entry["covered"] for entry in records),
        "power_covered": mean(entry["power_covered"] for entry in records),
        "silent": mean(entry["verdict"] == "ok" and not entry["covered"] for entry in records),
        "ratio_silent": mean(bool(entry["ratio_silent"]) for entry in records),
        "ok": mean(entry["verdict"] == "ok" for entry in records),
        "half_width": median(math.log(high / low) / 2 for low, high in closed),
        "wider": math.exp(mean(math.log(math.log(b / a) / math.log(d / c)) for a, b, c, d in pairs)),
        "ratio": median(entry["ratio"] for entry in records),
        "verdicts": Counter(entry["verdict"] for entry in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits in worlds of known truth: how often a wrong answer is ok.")
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="index of the first sweep")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--world", choices=list(WORLDS), action="append", help="repeats; all if absent")
    asked = parser.parse_args()
    heads = ("curve", "covered, %", "by the power law, %", "silent, %", "`ok`, %", "half width", "wider", "ratio")
    print("| " + " | ".join(heads) + " |")
    print("|---" * 8 + "|")
    for name in asked.world or WORLDS:
        found = measure(name, asked.sweeps, asked.resamples, asked.first)
        silent = found["ratio_silent"] if len(WORLDS[name].curves) == 2 else found["silent"]
        shares = [f"{100 * share:.1f}" for share in (found["covered"], found["power_covered"], silent, found["ok"])]
        cells = [name, *shares, *(f"{found[key]:.2f}" for key in ("half_width", "wider", "ratio"))]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
