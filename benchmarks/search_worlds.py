"""What a search spends and finds on simulated laws, against grids: no training, no Ray.

Steps to the target are a hyperbola in the batch size times ``exp(curvature gap^2)``, ``gap`` the distance in ln lr from
the best learning rate, which follows ``B^slope`` and lies a given factor from the default. Noise is normal in ln S, for
every trial its own. Learning rates ten times too large diverge early, too small ones use up their budget.

plain: every learning rate of the default grid (7, a factor of 2 apart) at every batch size and seed, nothing stopped.
pruned: the same grid with the pruning rule of ``cbs sweep`` at its cheapest, all bounds known from the start. spent: by
the search. wide: S of a grid with a factor of 2 around the optimum, all seeds, which is what an exhaustive search would
find if it knew where to look.
``python -m benchmarks.search_worlds [--worlds 40] [--workers 2]``.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from cbs.registry.choices import Choice
from cbs.trial.config import TrialConfig
from cbs.trial.target import Target
from sweeps.search.forecast import End, play
from sweeps.search.search import Search
from sweeps.spec.cell import Cell
from sweeps.spec.spec import Sweep

DISTANCES = (1 / 30, 1.0, 3.0, 8.0, 30.0, 100.0, 1000.0)
SLOPES = (0.0, 0.5, 1.0)
NOISES = (0.03, 0.10)
SIZES = tuple(4 * 2**power for power in range(9))
DEFAULT = 4e-3
MIN_STEPS, MIN_EXAMPLES = 200.0, 8_000.0
"""As measured for AdamW on the embedded text."""

DIVERGES_AFTER = 20.0


@dataclass(frozen=True)
class World:
    """A law and its noise."""

    distance: float
    slope: float
    noise: float
    number: int
    curvature: float = 0.25

    @functools.cached_property
    def off_grid(self) -> float:
        """Where between two learning rates of a grid the best one lies, in octaves."""
        return random.Random(f"{self}").uniform(-0.5, 0.5)

    def best_lr(self, batch_size: int) -> float:
        return DEFAULT * self.distance * 2.0**self.off_grid * (batch_size / SIZES[len(SIZES) // 2]) ** self.slope

    def log_steps(self, batch_size: int, lr: float) -> float:
        """Without noise."""
        gap = math.log(lr / self.best_lr(batch_size))
        return math.log(MIN_STEPS + MIN_EXAMPLES / batch_size) + self.curvature * gap**2

    def end(self, config: TrialConfig) -> End:
        gap = math.log(config.lr / self.best_lr(config.batch_size))
        if gap > math.log(10.0):
            return End(DIVERGES_AFTER, reached=False, distance=math.inf)
        draw = random.Random(f"{self} {config.batch_size} {config.lr} {config.seed}").gauss(0.0, self.noise)
        log_steps = self.log_steps(config.batch_size, config.lr) + draw
        if log_steps > math.log(config.max_steps):
            # the loss falls by the share of the way that was gone
            return End(config.max_steps, reached=False, distance=1.0 - config.max_steps * math.exp(-log_steps))
        return End(math.exp(log_steps))


def sweep(world: World) -> Sweep:
    return Sweep(
        name="simulated",
        workload=Choice(name="noisy_quadratic"),
        optimizers=(Choice(name="adamw"),),
        batch_sizes=SIZES,
        seeds=(0, 1, 2),
        target=Target(metric="validation_loss", value=1.0),
        max_steps=2_000,
        max_examples=80_000,
    )


def found(search: Search, world: World) -> tuple[int, int, list[float], list[float]]:
    """Studies with an interior optimum, studies with none at all, and per study ln S over that at the best learning
    rate: without noise at the one found, and as measured."""
    inside, nothing, true, measured = 0, 0, [], []
    for study in search.sweep.studies():
        best = search.best(study)
        if best is None:
            nothing += 1
            continue
        inside += search.interior(study)
        least = world.log_steps(study.batch_size, world.best_lr(study.batch_size))
        true.append(world.log_steps(study.batch_size, best[0]) - least)
        measured.append(math.log(best[1]) - least)
    return inside, nothing, true, measured


def ends(world: World, batch_size: int, lrs: Sequence[float]) -> np.ndarray:
    """Steps of a grid's trials that nothing stops and whether they reach the target, shape ``[2, seeds, lrs]``."""
    base = sweep(world).replace(batch_sizes=(batch_size,))
    of = [[world.end(base.trial(Cell("adamw", batch_size, seed), lr)) for lr in lrs] for seed in base.seeds]
    return np.array([[[end.steps for end in row] for row in of], [[end.reached for end in row] for row in of]])


def grid_examples(world: World, batch_size: int) -> tuple[float, float]:
    """Of the default grid at a batch size: with nothing stopped, and where every trial knows its bound from the start,
    which is the least that pruning leaves."""
    base = sweep(world)
    steps, reached = ends(world, batch_size, base.lr_grid("adamw"))
    best = np.where(reached > 0, steps, np.inf).min(axis=1, keepdims=True)
    bound = np.minimum(steps, (base.prune_factor or np.inf) * best)
    return batch_size * float(steps.sum()), batch_size * float(bound.sum())


def wide(world: World, batch_size: int) -> float:
    """Ln of the steps that a grid with a factor of 2 around the best learning rate finds on all seeds."""
    nearest = round(math.log2(world.best_lr(batch_size) / DEFAULT))
    lrs = tuple(float(f"{DEFAULT * 2.0**power:.6g}") for power in range(nearest - 2, nearest + 3))
    steps, reached = ends(world, batch_size, lrs)
    return float(np.log(np.where(reached > 0, steps, np.inf)).mean(axis=0).min())


def measure(world: World, workers: int) -> dict[str, float | list[float]]:
    search = Search(sweep(world))
    start = time.process_time()
    spent = play(search, world.end, workers=workers)
    seconds = time.process_time() - start
    inside, nothing, true, measured = found(search, world)
    plain, pruned = np.sum([grid_examples(world, size) for size in SIZES], axis=0)
    return {
        "plain": plain / spent.examples,
        "pruned": pruned / spent.examples,
        "trials": len(spent.results),
        "inside": inside,
        "nothing": nothing,
        "true": true,
        "measured": measured,
        "wide": [wide(world, size) - world.log_steps(size, world.best_lr(size)) for size in SIZES],
        "ms": 1000 * seconds,
        "wall": spent.seconds * workers / spent.examples,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--curvature", type=float, default=0.25)
    asked = parser.parse_args()
    print("plain/spent, pruned/spent: median (least); edges: without an interior optimum; S: mean +- deviation of ln S")
    print("over that of the best learning rate: true (found, without noise), as measured, and of the wide grid.\n")
    headings = (
        "distance",
        "slope",
        "noise",
        "plain/spent",
        "pruned/spent",
        "trials",
        "edges",
        "S true",
        "S measured",
        "S wide",
        "idle",
        "CPU ms",
    )
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for distance, slope, noise in product(DISTANCES, SLOPES, NOISES):
        rows = [
            measure(World(distance, slope, noise, number, asked.curvature), asked.workers)
            for number in range(asked.worlds)
        ]
        total = len(rows) * len(SIZES)
        spread = {key: [value for row in rows for value in row[key]] for key in ("true", "measured", "wide")}
        cells = [
            f"{distance:.3g}",
            f"{slope:g}",
            f"{noise:g}",
            *(
                f"{statistics.median(row[key] for row in rows):.2f} ({min(row[key] for row in rows):.2f})"
                for key in ("plain", "pruned")
            ),
            f"{statistics.mean(row['trials'] for row in rows):.0f}",
            f"{total - sum(row['inside'] for row in rows)} of {total}",
            *(f"{statistics.mean(spread[key]):+.3f} +- {statistics.stdev(spread[key]):.3f}" for key in spread),
            f"{statistics.mean(row['wall'] for row in rows) - 1:.2f}",
            f"{statistics.median(row['ms'] for row in rows):.0f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
