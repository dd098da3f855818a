"""Laws that a search is tried on without training and without Ray.

Steps to the target are a hyperbola in the batch size times ``exp(curvature gap^2)``, ``gap`` the distance in ln lr from
the best learning rate, which follows ``B^slope`` and lies a given factor from the default. Noise is normal in ln S, for
every trial its own. Learning rates ten times too large diverge early, too small ones use up their budget.
"""

import functools
import math
import random
from dataclasses import dataclass

from cbs.registry.choices import Choice
from cbs.trial.config import TrialConfig
from cbs.trial.target import Target
from sweeps.search.forecast import End
from sweeps.search.search import Search
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype

SIZES = tuple(4 * 2**power for power in range(9))
DEFAULT = 4e-3
MIN_STEPS, MIN_EXAMPLES = 200.0, 8_000.0  # As measured for AdamW on the embedded text

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
        trial=prototype(workload=Choice(name="noisy_quadratic"), target=Target(metric="validation_loss", value=1.0)),
        axes=Axes(optimizers=(Choice(name="adamw"),), batch_sizes=SIZES, seeds=(0, 1, 2)),
        max_steps=2_000,
        max_examples=80_000,
    )


def found(search: Search, world: World) -> tuple[int, list[float]]:
    """How many studies have an interior optimum, and per study the noiseless ln S at the learning rate that was found
    over that at the best one."""
    inside, true = 0, []
    for study in search.studies:
        best = search.studies[study].best
        if best is None:
            continue
        inside += search.studies[study].interior
        least = world.log_steps(study.batch_size, world.best_lr(study.batch_size))
        true.append(world.log_steps(study.batch_size, best[0]) - least)
    return inside, true
