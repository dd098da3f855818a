"""How often the local critical batch size is right: branches on a noisy quadratic, whose expected losses are known.

A trunk trains from a random start; at a checkpoint its parameters and velocity are what they are, and branches of
factor k go on with k times the batch size and f(k) times the learning rate, those of one seed on the same examples. The
mean and covariance of a branch follow a linear recurrence in every coordinate, so that its expected loss is exact.
``python -m benchmarks.branching_truth`` prints the tables of docs/branching.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.quantities import Array
from benchmarks.telling import head, holds, line
from extensions.branching.factors import BranchLosses, FactorCurve, local_factor
from extensions.branching.local_batch_sizes import factor_curves
from extensions.branching.reading import Branched, TunedBranches, tuned
from extensions.branching.sequential import next_branches

FACTORS = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
PARTS, WEIGHTS = (0.75, 0.875, 1.0), (0.25, 0.5, 0.25)
"""Evaluations in the last quarter of a window, and what they weigh in its mean."""
DIMENSION = 60
FINE = 240  # Factors at which the true loss is worked out: 40 for each doubling


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """An optimizer on the quadratic with curvature 1/i and noise to match.

    Attributes:
        rule: power of k that the learning rate of a branch is multiplied by.
        power: of the preconditioner ``h^-power``.
        window: examples of a branch.
    """

    name: str
    lr: float
    momentum: float = 0.0
    power: float = 0.0
    rule: float = 0.5
    batch_size: int = 16
    window: int = 2048

    @property
    def curvature(self) -> Array:
        return 1.0 / np.arange(1, DIMENSION + 1)

    def step(self, factor: float) -> Array:
        """Learning rate of every coordinate."""
        return np.asarray(self.lr * factor**self.rule * self.curvature**-self.power)

    def checkpoint(self, steps: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Parameters and velocity after so many steps."""
        theta, velocity = rng.standard_normal(DIMENSION), np.zeros(DIMENSION)
        for _ in range(steps):
            gradient = self.curvature * theta + rng.standard_normal(DIMENSION) * np.sqrt(
                self.curvature / self.batch_size
            )
            velocity = self.momentum * velocity - self.step(1.0) * gradient
            theta = theta + velocity
        return theta, velocity

    def expected(self, start: tuple[Array, Array], factor: float, examples: float) -> float:
        """Exact loss of a branch over the last quarter of so many examples, between whole steps on straight lines."""
        h, lr, m = self.curvature, self.step(factor), self.momentum
        theta, velocity = start
        both, cross, one = np.zeros(DIMENSION), np.zeros(DIMENSION), np.zeros(DIMENSION)
        kick = lr**2 * h / (factor * self.batch_size)
        steps = examples / (factor * self.batch_size)
        losses = [0.5 * float((h * theta**2).sum())]
        for _ in range(math.ceil(steps)):
            velocity = m * velocity - lr * h * theta
            theta = theta + velocity
            both, cross, one = _moved(both, cross, one, m, lr * h, kick)
            losses.append(0.5 * float((h * (theta**2 + both)).sum()))
        return float(np.interp(np.array(PARTS) * steps, np.arange(len(losses)), losses) @ WEIGHTS)

    def branches(self, start: tuple[Array, Array], runs: int, rng: np.random.Generator) -> Array:
        """Losses over the last quarter of the window, ``[runs, K]``."""
        h, least = self.curvature, FACTORS[0]
        size = least * self.batch_size
        theta = [np.tile(start[0], (runs, 1)) for _ in FACTORS]
        velocity = [np.tile(start[1], (runs, 1)) for _ in FACTORS]
        waiting = [np.zeros((runs, DIMENSION)) for _ in FACTORS]
        every = [round(factor / least) for factor in FACTORS]
        turns = round(self.window / size)
        losses, weights = np.zeros((runs, len(FACTORS))), dict(zip(np.multiply(PARTS, turns), WEIGHTS, strict=True))
        for turn in range(1, turns + 1):
            noise = rng.standard_normal((runs, DIMENSION)) * np.sqrt(h / size)
            for place, factor in enumerate(FACTORS):
                waiting[place] += noise
                if turn % every[place] == 0:
                    gradient = h * theta[place] + waiting[place] / every[place]
                    velocity[place] = self.momentum * velocity[place] - self.step(factor) * gradient
                    theta[place] = theta[place] + velocity[place]
                    waiting[place][:] = 0.0
            if turn in weights:
                losses += weights[turn] * np.stack([0.5 * (x**2) @ h for x in theta], axis=1)
        return losses


def _moved(both: Array, cross: Array, one: Array, m: float, pull: Array, kick: Array) -> tuple[Array, Array, Array]:
    """Variance of the parameters, covariance with the velocity and variance of the velocity after a step."""
    speed = m * m * one - 2 * m * pull * cross + pull**2 * both + kick
    mixed = m * cross - pull * both
    return both + 2 * mixed + speed, mixed + speed, speed


TRUNKS = (
    Trunk(name="SGD", lr=0.05),
    Trunk(name="momentum", lr=0.005, momentum=0.9, rule=1.0),
    Trunk(name="preconditioned", lr=0.01, power=0.5),
)
NEAR_DIVERGENCE = Trunk(name="SGD near divergence", lr=0.2, rule=1.0, batch_size=8, window=1024)
CHECKPOINTS = (50, 200, 800)
WANTED = (0.7, 1.7, 5.0)  # k* whose tolerances are asked for


@dataclass(frozen=True)
class Truth:
    """Exact excesses of a checkpoint over a fine grid of factors, above the best smaller one."""

    factors: Array
    excess: Array

    @classmethod
    def of(cls, trunk: Trunk, start: tuple[Array, Array]) -> Truth:
        factors = np.geomspace(FACTORS[0], FACTORS[-1], FINE)
        losses = np.array([trunk.expected(start, factor, trunk.window) for factor in factors])
        return cls(factors, losses - np.minimum.accumulate(losses))

    def tolerance(self, factor: float) -> float:
        """At which k* is this."""
        return float(np.interp(math.log(factor), np.log(self.factors), self.excess))

    def factor(self, tolerance: float) -> float:
        """k* at a tolerance; infinity beyond the factors."""
        within = int(np.flatnonzero(self.excess <= tolerance)[-1])
        if within == FINE - 1:
            return math.inf
        low, high = self.excess[within : within + 2]
        share = (tolerance - low) / (high - low)
        logs = np.log(self.factors[within : within + 2])
        return math.exp(logs[0] + share * (logs[1] - logs[0]))


def coverage(trunk: Trunk, steps: int, wanted: float, seeds: int, replicates: int) -> dict[str, float]:
    """Of the interval, with the bias of the median estimate, and the tolerance. A single seed has the noise of three
    seeds at the two other checkpoints."""
    tolerance = worlds(trunk, steps, replicates)[0].tolerance(wanted)
    low = high = 0
    values = []
    for turn, curve in enumerate(measured(trunk, steps, seeds, replicates)):
        found = local_factor(curve, tolerance, 0.95, seed=turn)
        first, last = found.factor.interval
        low += first is not None and first > wanted
        high += last is not None and last < wanted
        values.append(found.factor.value or (math.inf if found.beyond == "above" else 0.0))
    return {
        "tolerance": tolerance,
        "bias": float(np.median(values)) / wanted - 1.0,
        "coverage": 1.0 - (low + high) / replicates,
        "too high": low / replicates,
        "too low": high / replicates,
    }


@functools.lru_cache(maxsize=4)
def measured(trunk: Trunk, steps: int, seeds: int, replicates: int) -> list[FactorCurve]:
    """Draws of the branches of one checkpoint, for all tolerances."""
    losses, others = (
        [worlds(trunk, each, replicates)[1] for each in CHECKPOINTS if (each == steps) is own] for own in (True, False)
    )
    found = []
    for turn in range(replicates):
        beside = [each[turn, : seeds if seeds > 1 else 3] for each in others] if seeds < 3 else []
        found.append(curves_of([losses[0][turn, :seeds], *beside], turn)[0])
    return found


def curves_of(checkpoints: list[Array], seed: int) -> list[FactorCurve]:
    """Draws of the losses of the checkpoints of one run, ``[N, K]`` each, as ``cbs local`` makes them."""
    curves = factor_curves([branches_of(losses) for losses in checkpoints], AnalysisConfig(resamples=1000), 100 * seed)
    return [curve for curve in curves if curve is not None]


def branches_of(losses: Array) -> TunedBranches:
    """Branches with losses ``[N, K]``, NaN where there is none."""
    seeds, places = np.nonzero(np.isfinite(losses))
    trials = pd.DataFrame(
        {"factor": FACTORS[places], "batch_size": 16 * FACTORS[places], "lr_factor": 1.0, "seed": seeds}
    ).assign(loss=losses[seeds, places])
    return tuned(Branched(group=None, source="", examples=1, window=1.0, trials=trials))  # type: ignore[arg-type]


@functools.cache
def worlds(trunk: Trunk, steps: int, replicates: int) -> tuple[Truth, Array]:
    """The truth at a checkpoint and the losses of branches ``[replicates, 5, K]``."""
    rng = np.random.default_rng([steps, 1])
    start = trunk.checkpoint(steps, rng)
    losses = trunk.branches(start, replicates * 5, rng)
    return Truth.of(trunk, start), losses.reshape(replicates, 5, len(FACTORS))


def sequential(trunk: Trunk, tolerance: float, replicates: int, error: float = 0.1) -> list[dict[str, float]]:
    """Along the checkpoints in turn: how often k* lies outside of what the search ends with, its branches, how many
    checkpoints took at most four, and how often the interval of k* by these branches holds it."""
    rows = [worlds(trunk, steps, replicates)[0].factor(tolerance) for steps in CHECKPOINTS]
    names = ("wrong", "branches", "at most four", "doublings", "coverage")
    found = [{"k*": row} | dict.fromkeys(names, 0.0) for row in rows]
    for turn in range(replicates):
        earlier: list[BranchLosses] = []
        guess = 1.0
        for place, steps in enumerate(CHECKPOINTS):
            losses = worlds(trunk, steps, replicates)[1][turn]
            branches = BranchLosses(FACTORS, np.full_like(losses, np.nan))
            while (answer := next_branches(branches, tolerance, guess=guess, error=error, earlier=earlier)).run:
                branches.losses[answer.seed, answer.run] = losses[answer.seed, answer.run]
            low, high = answer.between
            count = int(np.isfinite(branches.losses).sum())
            told = (not low <= rows[place] <= (high or math.inf), count, count <= 4)
            for name, value in zip(names, (*told, math.log2((high or 2 * FACTORS[-1]) / low)), strict=False):
                found[place][name] += value / replicates
            earlier.append(branches)
            guess = math.sqrt(low * (high or low))
        for place, curve in enumerate(curves_of([each.losses for each in earlier], turn)):
            interval = local_factor(curve, tolerance, 0.95, seed=turn).factor.interval
            found[place]["coverage"] += holds(interval, rows[place]) / replicates
    return found


def _intervals(replicates: int) -> Iterator[str]:
    titles = "tolerance", "seeds", "bias", "coverage", "above", "below"
    yield head(("optimizer", "checkpoint (steps)", "k*", *titles))
    for trunk in (*TRUNKS, NEAR_DIVERGENCE):
        for steps in CHECKPOINTS:
            for wanted in WANTED:
                for seeds in (1, 2, 3, 5):
                    row = coverage(trunk, steps, wanted, seeds, replicates)
                    cells = [f"{row['tolerance']:.4f}", str(seeds), f"{100 * row['bias']:+.1f} %"]
                    cells += [f"{100 * row[name]:.1f} %" for name in ("coverage", "too high", "too low")]
                    yield line((trunk.name, steps, wanted, *cells))


def _searches(replicates: int) -> Iterator[str]:
    titles = "wrong", "branches", "at most 4", "doublings", "coverage"
    yield head(("optimizer", "tolerance", "checkpoint (steps)", "k*", *titles))
    for trunk, wanted in (*itertools.product(TRUNKS, (1.5, 4.0, 6.0)), (NEAR_DIVERGENCE, 1.7)):
        tolerance = worlds(trunk, CHECKPOINTS[1], replicates)[0].tolerance(wanted)
        for steps, row in zip(CHECKPOINTS, sequential(trunk, tolerance, replicates), strict=True):
            yield line((
                trunk.name, f"{tolerance:.4f}", steps, f"{row['k*']:.2f}", f"{100 * row['wrong']:.1f} %",
                f"{row['branches']:.1f} of {5 * len(FACTORS)}", f"{100 * row['at most four']:.0f} %",
                f"{row['doublings']:.2f}", f"{100 * row['coverage']:.1f} %",
            ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"intervals": _intervals, "searches": _searches}
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    given = parser.parse_args()
    for name in given.parts:
        for text in parts[name](given.replicates):
            print(text, flush=True)
        print()


if __name__ == "__main__":
    main()
