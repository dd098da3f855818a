"""Simulated sweeps at an equal budget whose truth is known: how often ``cbs budget`` is right.

The expected loss after E examples at every batch size and learning rate is that of the noisy quadratic in closed form
(:mod:`extensions.theory.noisy_quadratic`); a trial is that plus normal noise, part of which the learning
rates of a seed share. ``python -m benchmarks.budget_truth`` prints the table of benchmarks/tables.md.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import at_best
from analysis.estimate.comparison import Standing
from analysis.estimate.objective import Losses, draw_losses, loss_studies
from analysis.estimate.studies import Study
from analysis.formatting import number
from analysis.quantities import Array
from benchmarks.telling import head, holds, line
from extensions.budget.comparisons import Equivalence, equivalence, pair
from extensions.theory.noisy_quadratic import NoisyQuadratic
from extensions.theory.noisy_quadratic.model import modes_of

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
        method, momentum, power: of the optimizer, see
            :func:`extensions.theory.noisy_quadratic.model.modes_of`.
        budget: examples.
        within: margin over the least loss.
        rival: loss of a second optimizer over that of the first.
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
    rival: float = 1.0


SETTINGS = (
    Setting(name="3 seeds, noise 0.3 %", seeds=3, noise=0.003, rival=1.05),
    Setting(name="3 seeds, noise 1 %", seeds=3, noise=0.01),
    Setting(name="3 seeds, noise 3 %", seeds=3, noise=0.03, rival=1.05),
    Setting(name="2 seeds, noise 1 %", seeds=2, noise=0.01, rival=1.05),
    Setting(name="1 seed, noise 0.3 %", seeds=1, noise=0.003),
    Setting(name="1 seed, noise 1 %", seeds=1, noise=0.01, rival=1.05),
    Setting(name="3 seeds, 1 %, search begins 16 times too low", seeds=3, noise=0.01, offset=-math.log(16)),
    Setting(
        name="3 seeds, 1 %, optimum at the edge of stability", seeds=3, noise=0.01, power=0.0, budget=65536,
        within=0.1, rival=1.05,
    ),
)  # fmt: skip


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
        studies, scale = loss_studies([study_of(size, lrs, losses)], [losses])
        between = 4 * scale.unit * math.sqrt(at_best(studies, math.inf)[0].variance)
        if between <= FINE * least or at + 1 >= len(places):
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


def answered(
    world: World, truth: dict[int, tuple[float, float]], rng: np.random.Generator, config: AnalysisConfig, factor: float
) -> Losses:
    """The losses at the best learning rates of one simulated sweep, ``factor`` times as large."""
    studies, tables = zip(*simulated(world, truth, rng), strict=True)
    made, scale = loss_studies(studies, [factor * losses for losses in tables])
    return draw_losses(made, scale, config)


def judgement(answer: Equivalence, best: float, largest: float, excess: Array, margin: float) -> dict[str, bool]:
    """What is right and wrong in an answer, against the best batch size, the largest one within the margin, and every
    excess."""
    standings = np.array([each.standing for each in answer.excesses])
    right = {
        "best": holds(answer.best.interval, best),
        "largest": holds(answer.largest_within.interval, largest),
        "equal wrongly": bool(((standings == Standing.EQUAL) & (excess >= margin)).any()),
        "worse wrongly": bool(((standings == Standing.WORSE) & (excess <= margin)).any()),
    }
    wrong = not (right["best"] and right["largest"]) or right["equal wrongly"] or right["worse wrongly"]
    return right | {"wrong": wrong}


def measured(setting: Setting, sweeps: int, config: AnalysisConfig) -> dict[str, float]:
    """How often everything is right in so many simulated sweeps, as shares."""
    world = World(setting)
    truth = {size: world.best(size) for size in SIZES}
    least = np.array([truth[size][0] for size in SIZES])
    margin, excess = setting.within * least.min(), least - least.min()
    fine = np.geomspace(SIZES[0], SIZES[-1], 400)
    curve = np.array([world.best(size)[0] for size in fine])
    past = np.flatnonzero((curve > least.min() + margin) & (fine > fine[curve.argmin()]))
    largest = float(fine[past[0]]) if len(past) else math.inf
    tail, found = 0.5 - config.confidence / 2, []
    for turn in range(sweeps):
        rng = np.random.default_rng([turn, 7])
        losses = answered(world, truth, rng, config, 1.0)
        answer = equivalence(losses, margin, config.confidence)
        low, high = np.quantile(losses.drawn, [tail, 1 - tail], axis=0)
        standings = np.array([each.standing for each in answer.excesses])
        apart = pair(("a", "b"), losses, answered(world, truth, rng, config, setting.rival), config).at
        ends = np.array([each.interval for each in apart])
        true = (1 - setting.rival) * least[[SIZES.index(each.batch_size) for each in apart]]
        found.append(
            judgement(answer, SIZES[int(excess.argmin())], largest, excess, margin)
            | {
                "loss": ((low <= least) & (least <= high)).mean(),
                "half width": ((high - low) / 2 / least).mean(),
                "equal found": (standings == Standing.EQUAL)[excess < margin / 2].mean(),
                "worse found": (standings == Standing.WORSE)[excess > 2 * margin].mean(),
                "difference": ((ends[:, 0] <= true) & (true <= ends[:, 1])).mean(),
                "told apart": ((ends[:, 0] > 0) | (ends[:, 1] < 0)).mean(),
            }
        )
    return {name: float(np.mean([row[name] for row in found])) for name in found[0]}


COLUMNS = (
    "loss", "best", "largest", "difference", "equal wrongly", "worse wrongly", "wrong", "equal found", "worse found",
    "told apart", "half width",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--settings", default="", help="numbers of settings, as in 0,3; all of them by default")
    given = parser.parse_args()
    chosen = [SETTINGS[int(part)] for part in given.settings.split(",") if part] or SETTINGS
    print(head(("world", "second optimizer", *COLUMNS)), flush=True)
    for setting in chosen:
        shares = measured(setting, given.sweeps, AnalysisConfig(resamples=given.resamples))
        cells = [f"{number(100 * shares[name])} %" for name in COLUMNS]
        other = "equal" if setting.rival == 1 else f"{100 * (setting.rival - 1):.0f} % worse"
        print(line((setting.name, other, *cells)), flush=True)


if __name__ == "__main__":
    main()
