"""Worlds of known truth: steps to target as sweeps would have found them, around curves whose critical batch size is
exact; and what an analysis of them says against that truth.

    python -m benchmarks.worlds [--sweeps 200] [--first 0] [--world NAME] [--smooth] [--shared] [--jobs 2]

prints the table of curves of ``benchmarks/tables.md``.

The critical batch size is the one around which the product of steps and examples, ``B S(B)^2``, is least on average. A
sweep draws where its curve lies between the batch sizes and how the best learning rate drifts with the batch size; its
learning rates are a window of a lattice around the best one, as the search of a sweep leaves them. Away from the best
learning rate steps grow by a parabola in ``ln lr``. Noise has a part that all learning rates of a (batch size, seed)
share, and may have one that a seed has at every batch size. An estimator can be tried on :func:`logs` without tables.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.questions.compare.optimizers import critical_pairs
from analysis.questions.fit.table_fit import fit_table
from benchmarks.telling import head, holds, line
from benchmarks.world_curves import (
    CRITICAL,
    MIN_STEPS,
    Curve,
    Truth,
    exponential,
    falling,
    falling_exponent,
    knee,
    log_overhead,
    log_tail,
    perfect_then_none,
    power,
    quadratic,
    slowed,
    two_exponents,
    two_powers,
    two_slopes,
    u_shaped,
)

LRS = 5  # The best one inside, and two on either side, octaves apart
PENALTY = 0.1  # What ``ln S`` gains at twice or half the best learning rate
SHARED, OWN = 0.8, 0.6
"""Standard deviations, in those of the noise, of what learning rates share and of what each has for itself."""
EIGHT = tuple(np.arange(8) - 3.5)


@dataclass(frozen=True, kw_only=True)
class World:
    """One kind of sweep.

    Attributes:
        name: in tests and in the table, and seed of its draws.
        curves: by optimizer; a table of one has no column for it.
        smooth: whether it should be answered ``ok``: its curve has neither kink nor jump, its least product lies
            between the batch sizes, and no run is odd.
        octaves: ``log2 B / CRITICAL`` of the batch sizes.
        seeds: runs of every batch size and learning rate.
        noise: standard deviation of ``ln S`` that a (batch size, seed) has for itself.
        common: that of what a seed has at all batch sizes and learning rates.
        slide: that of what a seed gains per e-fold of the batch size.
        equal: whether its curves have the same critical batch size.
        slowed: factor on the steps from twice the middle batch size on, where batches ran on another footing.
        far: factor on the steps of one run at the best learning rate of a batch size.
        patience: a run is stopped after this many times the steps that its batch size needs.
        budget: and after this many times the fewest steps ``S_0`` of the curve, whatever its batch size.
        diverges: octaves above the best learning rate from which on runs diverge.
        missing: probability that a run of a second or later seed was not made, away from the best learning rate.
        absent: probability that a batch size lacks a second or later seed.
    """

    name: str
    curves: Mapping[str, Curve]
    smooth: bool = True
    octaves: tuple[float, ...] = EIGHT
    seeds: int = 3
    noise: float = 0.06
    common: float = 0.0
    slide: float = 0.0
    equal: bool = False
    slowed: float = 1.0
    far: float = 1.0
    patience: float = math.inf
    budget: float = math.inf
    diverges: float = math.inf
    missing: float = 0.0
    absent: float = 0.0


class Logs(NamedTuple):
    """Runs of one optimizer in one sweep, without a table.

    Attributes:
        sizes: batch sizes, shape ``[M]``.
        logs: ln of the steps to target, shape ``[M, L, N]`` by learning rate and seed: infinite where a run diverged or
            was stopped, NaN where none was made.
        log_lrs: ln of the learning rates, shape ``[M, L]``.
        truth: the curve.
        stopped: ln of the steps run where a run was stopped before the target, NaN elsewhere, shape as ``logs``.
    """

    sizes: np.ndarray
    logs: np.ndarray
    log_lrs: np.ndarray
    truth: Truth
    stopped: np.ndarray


def logs(world: World, index: int) -> dict[str, Logs]:
    """The runs of a sweep by optimizer. The same arguments give the same runs."""
    rng = np.random.default_rng([index, world.seeds, zlib.crc32(world.name.encode())])
    found: dict[str, Logs] = {}
    for place, (name, curve) in enumerate(world.curves.items()):
        truth = Truth(curve=curve, critical=CRITICAL, min_steps=MIN_STEPS * 1.3**place, slowed=world.slowed)
        if world.equal and found:
            critical = CRITICAL * next(iter(found.values())).truth.least_product / truth.least_product
        else:
            critical = CRITICAL * 2.0 ** rng.uniform(-0.5, 0.5)
        found[name] = _runs(world, replace(truth, critical=critical), rng)
    return found


def _runs(world: World, truth: Truth, rng: np.random.Generator) -> Logs:
    sizes = np.round(CRITICAL * 2.0 ** np.array(world.octaves))
    shape = count, _, seeds = len(sizes), LRS, world.seeds
    best = rng.uniform(0, 1) + rng.uniform(0.3, 0.7) * np.log2(sizes)
    lattice = np.round(best)[:, None] + np.arange(LRS) - LRS // 2
    logs = np.log(truth.steps(sizes))[:, None] + PENALTY * (lattice - best[:, None]) ** 2
    noise = SHARED * rng.standard_normal((count, 1, seeds)) + OWN * rng.standard_normal(shape)
    logs = logs[..., None] + world.noise * noise
    common, slide = rng.standard_normal((2, seeds))
    logs += world.common * common + world.slide * np.outer(np.log(sizes / CRITICAL), slide)[:, None]
    logs[rng.integers(count), LRS // 2, rng.integers(seeds)] += math.log(world.far)

    limit = np.log(np.minimum(world.patience * truth.steps(sizes), world.budget * truth.min_steps))[:, None, None]
    stopped = np.where(logs > limit, limit, np.nan)
    diverged = np.broadcast_to((lattice - best[:, None] >= world.diverges)[..., None], shape)
    gone = (rng.random(shape) < world.missing) & (np.arange(LRS) != LRS // 2)[:, None]
    gone = (gone | (rng.random((count, 1, seeds)) < world.absent)) & (np.arange(seeds) > 0)
    return Logs(
        sizes=sizes,
        logs=np.where(gone, np.nan, np.where(diverged | (logs > limit), np.inf, logs)),
        log_lrs=np.log(1e-3 * 2.0**lattice),
        truth=truth,
        stopped=np.where(gone | diverged, np.nan, stopped),
    )


def tables(world: World, index: int) -> tuple[pd.DataFrame, dict[str, Truth]]:
    """The table of a sweep, as :func:`fit_table` reads it, and the truth by optimizer. Runs that were stopped are
    ``censored`` at the steps run; those that diverged have no steps."""
    found = logs(world, index)
    frames = []
    for name, runs in found.items():
        made = np.nonzero(~np.isnan(runs.logs))
        size, lr, seed = made
        steps, stopped = runs.logs[made], runs.stopped[made]
        reached = np.isfinite(steps)
        frame = pd.DataFrame(
            {
                "batch_size": runs.sizes[size],
                "steps": np.exp(np.where(reached, steps, stopped)),
                "seed": seed,
                "lr": np.exp(runs.log_lrs[size, lr]),
                "censored": ~reached,
            }
        )
        frames.append(frame.assign(optimizer=name) if len(found) > 1 else frame)
    return pd.concat(frames, ignore_index=True), {name: runs.truth for name, runs in found.items()}


def shared(world: World) -> World:
    """The world with seeds that are fast or slow at every batch size, about as measured."""
    noise = min(world.noise, 0.04)
    return replace(world, name=f"{world.name}, shared seeds", noise=noise, common=0.07, slide=0.02)


def _spaced(count: int, octaves: float) -> tuple[float, ...]:
    return tuple(octaves * (np.arange(count) - (count - 1) / 2))


def _moved(octaves: float) -> tuple[float, ...]:
    return tuple(octaves + np.array(EIGHT))


def _world(name: str, curve: Curve = power(1.0), **more: Any) -> World:  # noqa: B008
    return World(name=name, curves={"": curve}, **more)


QUIET = 0.02  # Where a curve that is no hyperbola is hidden least by noise
_FIRST = (
    *(_world(f"exponent {a:g}", power(a)) for a in (0.7, 0.85, 1.0, 1.2, 1.5)),
    _world("exponent 1, 2 % noise", noise=QUIET),
    _world("noisy quadratic, tuned SGD", quadratic),
    _world("steps fall by 5 % per e-fold for ever", falling(0.05)),
    _world("steps fall by 15 % per e-fold for ever", falling(0.15)),
    _world("square root of 1 + 3/x^2", knee(2.0)),
    # its product is x + 3, least for the smallest of batches
    _world("square root of 1 + 3/x", knee(2.0, 0.5), smooth=False),
    _world("large batches ever slower", slowed),
    _world("blunt knee, g = 0.7", knee(0.7)),
    _world("two exponents, 0.6 and 1.2", two_exponents),
    _world("exponent falls from 1 to 0.6", falling_exponent),
    _world("exponent falls from 1 to 0.6, 2 % noise", falling_exponent, noise=QUIET),
    _world("perfect scaling, then the power 0.3", two_slopes, smooth=False),
    # with the exponent 0.7 the least product is two octaves below the middle: at the edge of three of these
    _world("3 batch sizes a factor 4 apart, exponent 0.7", power(0.7), octaves=_spaced(3, 2), smooth=False),
    _world("3 batch sizes a factor 8 apart, exponent 0.7", power(0.7), octaves=_spaced(3, 3)),
    _world("4 batch sizes a factor 2 apart, exponent 0.7", power(0.7), octaves=_spaced(4, 1), smooth=False),
    _world("5 batch sizes a factor 2 apart, exponent 0.7", power(0.7), octaves=_spaced(5, 1), smooth=False),
    _world("quick recipe, exponent 0.7", power(0.7), octaves=(-5, -3, -1, 1, 3), seeds=2),
    World(name="two optimizers, knees 0.7 and 1.5", curves={"first": knee(0.7), "second": knee(1.5)}, equal=True),
    World(
        name="two optimizers, exponents 0.85 and 1.2", curves={"first": power(0.85), "second": power(1.2)}, equal=True
    ),
    _world("large batches 20 % slower", noise=QUIET, slowed=1.2, smooth=False),
)
_SHAPES = (
    _world("large batches 20 % slower, 6 % noise", slowed=1.2, smooth=False),
    _world("perfect scaling, then the power 0.3, 2 % noise", two_slopes, noise=QUIET, smooth=False),
    _world("perfect scaling, then none", perfect_then_none, smooth=False),
    _world("sharp knee, g = 4", knee(4.0), smooth=False),
    _world("sharp knee, g = 4, 2 % noise", knee(4.0), noise=QUIET, smooth=False),
    _world("exponent 1.3", power(1.3)),
    _world("examples and steps U-shaped", u_shaped),
    _world("logarithmic tail", log_tail),
    _world("logarithmic overhead", log_overhead),
    _world("powers 1 and 1/2", two_powers),
    _world("exponential saturation", exponential),
    _world("least product at the largest batch size", octaves=_moved(-3.5), smooth=False),
    _world("least product above all batch sizes", octaves=_moved(-5), smooth=False),
    _world("least product below all batch sizes", octaves=_moved(5), smooth=False),
)
_RUNS = (
    _world("stopped at 1.25 times the fewest steps", patience=1.25),
    _world("stopped by a budget of 11 S_0", budget=11.0),
    _world("a third of other learning rates' seeds missing", missing=1 / 3),
    _world("a fifth of seeds missing", absent=0.2),
    _world("learning rates above the best diverge", diverges=1.5),
    _world("one run takes 1.8 times as long", far=1.8, smooth=False),
    *(_world(f"exponent 1, {seeds} seed{'s'[: seeds - 1]}", seeds=seeds, smooth=seeds > 1) for seeds in (1, 2, 4, 5)),
    *(_world(f"exponent 1, {count} batch sizes a factor 4 apart", octaves=_spaced(count, 2)) for count in (3, 4, 5)),
    *(_world(f"exponent 1, {count} batch sizes a factor 2 apart", octaves=_spaced(count, 1)) for count in (5, 6, 7, 9)),
    _world("exponent falls from 1 to 0.6, 5 sizes a factor 4 apart", falling_exponent, octaves=_spaced(5, 2)),
)
WORLDS = {world.name: world for world in (*_FIRST, *map(shared, _FIRST), *_SHAPES, *_RUNS)}


def fit(world: World, index: int, resamples: int) -> list[dict[str, Any]]:
    """What an analysis says of a sweep, one record per optimizer."""
    table, truths = tables(world, index)
    answers = fit_table(table, AnalysisConfig(resamples=resamples)).answers
    wrong = _ratio_silent(answers, list(truths.values()))
    return [
        record(answer, truth) | {"ratio_silent": wrong} for answer, truth in zip(answers, truths.values(), strict=True)
    ]


def record(answer: Answer, truth: Truth) -> dict[str, Any]:
    value, exact = answer.critical_batch_size, truth.least_product
    return {
        "interval": answer.interval,
        "covered": holds(answer.interval, exact),
        "verdict": str(answer.verdict),
        "ratio": math.nan if value is None or not 0 < exact < math.inf else value / exact,
    }


def _ratio_silent(answers: Sequence[Answer], truths: Sequence[Truth]) -> bool | None:
    """Whether two optimizers are both ``ok`` and the interval of the ratio of their critical batch sizes is wrong."""
    if len(answers) != 2:
        return None
    held = holds(critical_pairs(answers)[0].interval, truths[0].least_product / truths[1].least_product)
    return all(answer.verdict is Verdict.OK for answer in answers) and not held


Mapped = Callable[[Callable[[int], list[dict[str, Any]]], Iterable[int]], Iterable[list[dict[str, Any]]]]
"""``map``, or that of a pool."""


def measure(name: str, sweeps: int, resamples: int, first: int = 0, mapped: Mapped = map) -> dict[str, Any]:
    """Shares over sweeps: ``covered``, ``covered_ok`` (of those that are ``ok``), ``silent`` (``ok`` with a wrong
    interval), ``ratio_silent`` (of two optimizers, likewise of their ratio), ``ok``, ``closed`` (both ends are
    numbers); medians of the ``half_width`` of closed intervals of ln B and of the ``ratio`` of value to truth; all
    ``verdicts``. NaN if there is nothing to count."""
    job = functools.partial(_job, name, resamples)
    records = [entry for found in mapped(job, range(first, first + sweeps)) for entry in found]
    fine = [entry for entry in records if entry["verdict"] == "ok"]
    closed = [entry["interval"] for entry in records if None not in entry["interval"]]
    ratios = [entry["ratio"] for entry in records if not math.isnan(entry["ratio"])]
    return {
        "covered": mean(entry["covered"] for entry in records),
        "covered_ok": mean(entry["covered"] for entry in fine) if fine else math.nan,
        "silent": sum(not entry["covered"] for entry in fine) / len(records),
        "ratio_silent": mean(bool(entry["ratio_silent"]) for entry in records),
        "ok": len(fine) / len(records),
        "closed": len(closed) / len(records),
        "half_width": median(math.log(high / low) / 2 for low, high in closed) if closed else math.nan,
        "ratio": median(ratios) if ratios else math.nan,
        "verdicts": Counter(entry["verdict"] for entry in records),
    }


def _job(name: str, resamples: int, index: int) -> list[dict[str, Any]]:
    return fit(WORLDS[name], index, resamples)


_SHARES = ("covered", "covered_ok", "silent", "ok", "closed")
_HEADS = ("curve", "covered, %", "covered where `ok`, %", "silent, %", "`ok`, %", "closed, %", "half width", "ratio")


def _cells(world: World, found: Mapping[str, Any]) -> list[str]:
    """A line of the table; the silent errors of two optimizers are those of their ratio in brackets."""
    shares = ["" if math.isnan(found[key]) else f"{100 * found[key]:.1f}" for key in _SHARES]
    if len(world.curves) == 2:
        shares[_SHARES.index("silent")] += f" ({100 * found['ratio_silent']:.1f})"
    others = [each for each in found["verdicts"].most_common() if each[0] != "ok"][:3]
    total = found["verdicts"].total()
    doubts = ", ".join(f"{verdict} {100 * count / total:.0f}" for verdict, count in others)
    return [
        world.name,
        *shares,
        *("" if math.isnan(n := found[key]) else f"{n:.2f}" for key in ("half_width", "ratio")),
        doubts,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits in worlds of known truth: how often a wrong answer is ok.")
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="index of the first sweep")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--world", choices=list(WORLDS), action="append", help="repeats; all if absent")
    parser.add_argument("--smooth", action="store_true", help="only worlds that should be ok")
    parser.add_argument("--shared", action="store_true", help="only worlds whose seeds share a level")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    print(head((*_HEADS, "other verdicts, %")))
    with ProcessPoolExecutor(asked.jobs) as pool:
        chunk = max(1, min(10, asked.sweeps // asked.jobs))
        mapped: Mapped = functools.partial(pool.map, chunksize=chunk) if asked.jobs > 1 else map
        for name in asked.world or WORLDS:
            world = WORLDS[name]
            if (asked.smooth and not world.smooth) or (asked.shared and not world.common):
                continue
            found = measure(name, asked.sweeps, asked.resamples, asked.first, mapped)
            print(line(_cells(world, found)), flush=True)


if __name__ == "__main__":
    main()
