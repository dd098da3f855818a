"""Simulated sweeps at an equal budget whose truth is known: how often ``cbs budget`` is right.

The expected loss after E examples at every batch size and learning rate is that of the noisy quadratic in closed form
(:mod:`cbs.theory.noisy_quadratic`); a trial is that plus normal noise, part of which the learning rates of a seed
share. ``python -m benchmarks.budget_truth`` prints the table of docs/budget.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from analysis.arrays import Array
from analysis.config import AnalysisConfig
from analysis.estimate.objective import as_study, best_losses, unit_of
from analysis.estimate.optima import savings
from analysis.estimate.studies import Study
from analysis.questions.budget.equivalence import Standing, equivalence
from cbs.theory.noisy_quadratic import NoisyQuadratic
from cbs.theory.noisy_quadratic.modes import modes_of

SIZES = tuple(2**power for power in range(2, 11))
COMMON = 0.5
"""Share of the variance that the learning rates of a seed have in common."""

FINE = 0.05
"""Of the loss: a search goes on while a learning rate in between might save more."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A world, and what is run in it.

    Attributes:
        name: in words.
        seeds: of every learning rate.
        noise: standard deviation of a trial's loss over the loss at the best learning rate, the floor being 0.
        offset: ln of the default learning rate over the best one at the middle batch size, where the search begins.
        factor: between neighbouring learning rates.
        method, momentum, power: of the optimizer, see :func:`cbs.theory.noisy_quadratic.modes.modes_of`.
        budget: examples.
        within: margin over the least loss.
    """

    name: str
    seeds: int
    noise: float
    offset: float = 0.0
    factor: float = 2**0.5
    method: str = "sgd"
    momentum: float = 0.0
    power: float = 0.5
    budget: int = 16384
    within: float = 0.02


SETTINGS = (
    Setting(name="3 seeds, .3 %", seeds=3, noise=0.003),
    Setting(name="3 seeds, 1 %", seeds=3, noise=0.01),
    Setting(name="3 seeds, 3 %", seeds=3, noise=0.03),
    Setting(name="2 seeds, 1 %", seeds=2, noise=0.01),
    Setting(name="1 seed, .3 %", seeds=1, noise=0.003),
    Setting(name="1 seed, 1 %", seeds=1, noise=0.01),
    Setting(name="3 seeds, 1 %, default 16 x too low", seeds=3, noise=0.01, offset=-math.log(16)),
    Setting(name="3 seeds, 1 %, plain, edge of stability", seeds=3, noise=0.01, power=0.0, budget=65536, within=0.1),
)


class World:
    """The truth of a setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.model = setting, NoisyQuadratic.power_law(200)

    def losses(self, size: float, lrs: Any) -> Array:
        """Expected loss at the budget; the loss at the start where it is larger than five times that."""
        s = self.setting
        made = modes_of(self.model, s.method, np.atleast_1d(lrs), s.momentum, power=s.power)
        losses = made.loss(round(s.budget / size), size)
        return np.where(losses < 5 * self.model.initial_loss, losses, np.nan)

    def best(self, size: float) -> tuple[float, float]:
        """Least expected loss over all learning rates, and the learning rate."""
        grid = self.model.largest_lr(self.setting.power) * np.geomspace(1e-4, 1.05, 400)
        losses = np.nan_to_num(self.losses(size, grid), nan=np.inf)
        at = int(losses.argmin())
        found = minimize_scalar(
            lambda log: float(np.nan_to_num(self.losses(size, math.exp(log)), nan=1e9)[0]),
            bounds=(math.log(grid[max(at - 1, 0)]), math.log(grid[min(at + 1, 399)])),
            method="bounded",
        )
        return float(found.fun), math.exp(float(found.x))


def searched(world: World, size: int, start: float, least: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Learning rates ``[L]`` and losses ``[L, N]`` as a search leaves them: five around the start, then outwards until
    the best mean has two further ones on either side, or one that diverged; then halfway to its neighbours while a
    learning rate between them might save more than :data:`FINE`."""
    s = world.setting
    shared = math.sqrt(COMMON) * rng.standard_normal(s.seeds)
    seen: dict[float, Array] = {}

    def run(*places: float) -> None:
        for place in places:
            if place not in seen:
                own = math.sqrt(1 - COMMON) * rng.standard_normal(s.seeds)
                seen[place] = world.losses(size, start * s.factor**place) + s.noise * least * (shared + own)

    def best() -> tuple[list[float], int]:
        places = sorted(seen)
        means = [float(np.mean(seen[place])) for place in places]
        return places, int(np.argmin(np.where(np.isfinite(means), means, np.inf)))

    run(*range(-2, 3))
    for _ in range(40):
        places, at = best()
        fails = at + 1 < len(places) and not np.isfinite(seen[places[at + 1]]).all()
        below, above = 2 - at, 0 if fails else at + 3 - len(places)
        if below <= 0 and above <= 0:
            break
        run(*(places[0] - 1 - each for each in range(below)), *(places[-1] + 1 + each for each in range(above)))
    for _ in range(3):
        places, at = best()
        lrs, losses = start * s.factor ** np.array(places), np.array([seen[place] for place in places])
        least_saved, _, most_saved = savings(as_study(study_of(size, lrs, losses), losses, (0.0, least)))
        if most_saved - least_saved <= FINE or at + 1 >= len(places):
            break
        run((places[at - 1] + places[at]) / 2, (places[at] + places[at + 1]) / 2)
    places, _ = best()
    return start * s.factor ** np.array(places), np.array([seen[place] for place in places])


def study_of(size: int, lrs: Array, losses: Array) -> Study:
    shape = losses.shape
    status = np.where(np.isfinite(losses), "BUDGET_EXHAUSTED", "DIVERGED").astype(object)
    rows = np.arange(losses.size).reshape(shape)
    nothing = np.full(shape, np.nan)
    return Study(size, lrs, np.arange(shape[1]), nothing, status, nothing, rows, np.zeros(shape))


def simulated(
    world: World, truth: dict[int, tuple[float, float]], rng: np.random.Generator
) -> Iterator[tuple[Study, Array]]:
    """The study and the losses of every batch size; the search begins at one learning rate for all of them."""
    shift = world.setting.offset + rng.uniform(-0.5, 0.5) * math.log(2)
    for size in SIZES:
        near = truth[SIZES[len(SIZES) // 2]][1] * math.sqrt(size / SIZES[len(SIZES) // 2])
        lrs, losses = searched(world, size, near * math.exp(shift), truth[size][0], rng)
        yield study_of(size, lrs, losses), losses


def measured(setting: Setting, sweeps: int, config: AnalysisConfig) -> dict[str, Any]:
    world = World(setting)
    truth = {size: world.best(size) for size in SIZES}
    least = np.array([truth[size][0] for size in SIZES])
    margin = setting.within * least.min()
    excess = least - least.min()
    fine = np.geomspace(SIZES[0], SIZES[-1], 400)
    curve = np.array([world.best(size)[0] for size in fine])
    past = np.flatnonzero((curve > least.min() + margin) & (fine > fine[curve.argmin()]))
    largest = float(fine[past[0]]) if len(past) else math.inf
    count = {
        "loss": 0,
        "losses": 0,
        "best": 0,
        "largest": 0,
        "equal": 0,
        "false equal": 0,
        "worse": 0,
        "false worse": 0,
        "told": 0,
        "tellable": 0,
        "edge": 0,
        "halves": 0.0,
    }
    sizes_hit = np.zeros(len(SIZES))
    for number in range(sweeps):
        rng = np.random.default_rng([number, 7])
        pairs = list(simulated(world, truth, rng))
        scale = unit_of([losses for _, losses in pairs])
        studies = [as_study(study, losses, scale) for study, losses in pairs]
        found = best_losses(studies, scale, config)
        bound = np.array([study.at_edge(study.winner) for study in studies])
        answer = equivalence(np.array(SIZES, dtype=float), found, margin, bound, config.confidence)
        count["edge"] += int(bound.any())
        low, high = np.quantile(found.resampled, [0.025, 0.975], axis=0)
        count["loss"] += int(((low <= least) & (least <= high)).sum())
        count["losses"] += len(SIZES)
        sizes_hit += (low <= least) & (least <= high)
        count["halves"] += float(((high - low) / 2 / least).mean())
        b = answer.best.interval
        count["best"] += int(b[0] <= SIZES[int(least.argmin())] <= b[1])
        low_end, high_end = answer.largest_within.interval
        count["largest"] += int((low_end or 0) <= min(largest, SIZES[-1]) and largest <= (high_end or math.inf))
        standings = np.array([each.standing for each in answer.excesses])
        count["false equal"] += int(((standings == Standing.EQUAL) & (excess >= margin)).any())
        count["false worse"] += int(((standings == Standing.WORSE) & (excess <= margin)).any())
        count["equal"] += int(((standings == Standing.EQUAL) & (excess < margin)).sum())
        count["told"] += int((standings != Standing.UNKNOWN).sum())
    share = {name: count[name] / sweeps for name in ("best", "largest", "false equal", "false worse", "edge", "halves")}
    share["loss"] = count["loss"] / count["losses"]
    share["told"] = count["told"] / count["losses"]
    share["equal found"] = count["equal"] / sweeps / max(1, int((excess < margin).sum()))
    return share | {
        "hits": (sizes_hit / sweeps).tolist(),
        "truth": np.round(excess / margin, 2).tolist(),
        "largest truth": largest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    for setting in SETTINGS[given.first :]:
        found = measured(setting, given.sweeps, AnalysisConfig(resamples=given.resamples))
        print(setting.name, {k: (round(v, 3) if isinstance(v, float) else v) for k, v in found.items()}, flush=True)


if __name__ == "__main__":
    main()
