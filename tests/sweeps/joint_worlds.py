"""Laws in which momentum is tuned with the learning rate.

Steps to target are a hyperbola at the best momentum, which grows with the batch size along a given grid of values; the
best learning rate moves with the batch size, and falls with the momentum. Every other momentum costs ``PENALTY`` in ln
S for each value that it is away. Search and analysis are those of ``cbs sweep --axis`` and ``cbs analyze``.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.answers import answer_of
from cbs.registry.choices import Choice
from cbs.trial.config import TrialConfig
from cbs.trial.target import Target
from sweeps.external.asked import with_axes
from sweeps.search.forecast import End, play
from sweeps.search.search import Search
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype

MOMENTA = (0.8, 0.9, 0.95, 0.98)
SIZES = tuple(4 * 2**power for power in range(0, 9, 2))
MIN_STEPS, MIN_EXAMPLES = 200.0, 8_000.0
TRUTH = MIN_EXAMPLES / MIN_STEPS
PENALTY = 0.15
TARGET = Target(metric="validation_loss", value=1.0)


@dataclass(frozen=True)
class World:
    """A law and its noise."""

    noise: float
    number: int

    def best_momentum(self, batch_size: int) -> int:
        """Index of the best of :data:`MOMENTA`: inside them everywhere."""
        return 1 if batch_size < TRUTH else 2

    def end(self, config: TrialConfig) -> End:
        """How a trial ends: the penalty of a parabola in ln lr, and beyond 10 times the best divergence."""
        momentum = float(config.optimizer.options.get("momentum", MOMENTA[1]))
        best = 3.0 * (1.0 - momentum) * math.sqrt(config.batch_size / TRUTH) * 1.3
        gap = math.log(config.lr / best)
        if gap > math.log(10.0):
            return End(20.0, reached=False, distance=math.inf)
        away = abs(MOMENTA.index(momentum) - self.best_momentum(config.batch_size))
        draw = random.Random(f"{self} {config.batch_size} {config.lr} {momentum} {config.seed}").gauss(0.0, self.noise)
        curve = math.log(MIN_STEPS + MIN_EXAMPLES / config.batch_size)
        return End(math.exp(curve + 0.25 * gap**2 + PENALTY * away + draw))


def sweep(momenta: Sequence[float] = MOMENTA, seeds: int = 3) -> Sweep:
    base = Sweep(
        name="simulated",
        trial=prototype(workload=Choice(name="noisy_quadratic"), target=TARGET),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=SIZES, seeds=tuple(range(seeds))),
        max_steps=4_000,
        max_examples=80_000,
    )
    if len(momenta) == 1:
        return base.replace(optimizers=(Choice(name="sgd", options={"momentum": momenta[0]}),))
    return with_axes(base, [f"momentum={','.join(map(str, momenta))}"])


def replicate(world: World, momenta: Sequence[float] = MOMENTA, resamples: int = 300) -> dict[str, Any]:
    """One sweep and its analysis."""
    asked = sweep(momenta)
    played = play(Search(asked), world.end, workers=2)
    answer = answer_of(asked, played.results, resamples, ("momentum",))
    low, high = answer.interval
    right = [point.tuned == f"momentum={MOMENTA[world.best_momentum(point.batch_size)]}" for point in answer.points]
    return {
        "covered": (low is None or low <= TRUTH) and (high is None or high >= TRUTH),
        "momentum": statistics.mean(right),
        "verdict": str(answer.verdict),
    }
