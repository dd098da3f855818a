"""Whether the intervals of the critical batch size and of S_min hold the truth after a search: search, then analysis,
on simulated laws.

Learning rates and seeds are chosen together, on few trials, and the winner's are the steps that are fitted. The worlds
are those of :mod:`benchmarks.search_worlds`, whose best steps are a hyperbola, and :class:`Momentum`, in which the best
learning rate lies at a cliff. Beside the search stand grids that try five learning rates around the best on every seed,
a factor of 2^(1/4), 2 and 4 apart and wherever they happen to lie: what a finer one could still save is larger there.
The truth is that at the best of all learning rates. ``python -m benchmarks.search_coverage [--replicates 200]``.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.fit_table import fit_table
from benchmarks.calibration.truth import fitted
from benchmarks.search_worlds import DEFAULT, DIVERGES_AFTER, MIN_EXAMPLES, MIN_STEPS, World, sweep
from cbs.theory.noisy_quadratic import NoisyQuadratic, modes_of, passages
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.search.forecast import End, play
from sweeps.search.search import Search

TRUTH = MIN_EXAMPLES / MIN_STEPS
GRIDS = {"factor 1.19": 2.0**0.25, "factor 2": 2.0, "factor 4": 4.0}

QUADRATIC, MOMENTUM, TARGET = NoisyQuadratic.power_law(1000), 0.9, 0.1


@functools.cache
def _law(batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ln of learning rates and of the steps they take, of those that reach the target."""
    lrs = QUADRATIC.largest_lr(momentum=MOMENTUM) * 2.0 ** np.arange(-9.0, 0.0, 0.05)
    steps = passages(modes_of(QUADRATIC, "heavy_ball", lrs, momentum=MOMENTUM), TARGET, batch_size)
    return np.log(lrs[np.isfinite(steps)]), np.log(steps[np.isfinite(steps)])


@dataclass(frozen=True)
class Momentum:
    """SGD with momentum on the noisy quadratic in closed form (:mod:`cbs.theory.noisy_quadratic`), with seed noise.

    Steps fall with the learning rate up to the edge of stability, or to where noise keeps the loss above the target,
    which lies within a factor of 1.2 of the best.
    """

    noise: float
    number: int
    sizes = tuple(2**power for power in range(4, 14))

    def best_lr(self, batch_size: int) -> float:
        logs, steps = _law(batch_size)
        return math.exp(logs[steps.argmin()])

    def end(self, config: TrialConfig) -> End:
        logs, steps = _law(config.batch_size)
        at = math.log(config.lr)
        if at > logs[-1]:
            return End(DIVERGES_AFTER, reached=False, distance=math.inf)
        draw = random.Random(f"{self} {config.batch_size} {config.lr} {config.seed}").gauss(0.0, self.noise)
        # below the table S goes as 1 / lr
        return End(math.exp(float(np.interp(at, logs, steps)) + max(0.0, logs[0] - at) + draw))

    @property
    def truth(self) -> tuple[float, float]:
        """B_crit and S_min of the curve that is fitted, at the best of all learning rates."""
        steps = np.array([math.exp(_law(size)[1].min()) for size in self.sizes])
        curve = fitted(np.array(self.sizes, dtype=float), steps)
        return curve.critical, curve.min_steps


def table(results: Iterable[TrialResult]) -> pd.DataFrame:
    """The trials as an analysis reads them; what was stopped is a bound, what diverged has no steps."""
    rows = [
        {
            "batch_size": result.config.batch_size,
            "lr": result.config.lr,
            "seed": result.config.seed,
            "steps": math.nan
            if result.status is TrialStatus.DIVERGED
            else result.steps_to_target or float(result.final_step),
            "censored": result.steps_to_target is None,
        }
        for result in results
    ]
    return pd.DataFrame(rows)


def answer(results: Iterable[TrialResult], truth: tuple[float, float], resamples: int) -> dict[str, Any]:
    """Of ``B_crit``: ``covered``, ``width`` (half, in ln), ``estimate`` over the truth, ``verdict``; of ``S_min`` the
    first two with ``min_steps_`` before them."""
    found = fit_table(table(results), AnalysisConfig(resamples=resamples)).answers[0]
    told: dict[str, Any] = {
        "estimate": (found.critical_batch_size or math.nan) / truth[0],
        "verdict": str(found.verdict),
    }
    for name, (low, high), true in (
        ("", found.interval, truth[0]),
        ("min_steps_", found.min_steps.interval, truth[1]),
    ):
        told[f"{name}covered"] = (low is None or low <= true) and (high is None or high >= true)
        told[f"{name}width"] = math.log(high / low) / 2 if low and high else math.inf
    return told


def trials(world: World | Momentum, way: str) -> list[TrialResult]:
    """A sweep whose learning rates are chosen by ``search``, or lie on one of :data:`GRIDS`."""
    base = sweep(world if isinstance(world, World) else World(1.0, 0.0, 0.0, 0))
    if isinstance(world, Momentum):
        base = base.replace(batch_sizes=world.sizes, max_steps=10**6)
    if way == "search":
        return play(Search(base), world.end, workers=2).results
    factor, results = GRIDS[way], []
    anchor = DEFAULT * factor ** random.Random(f"{world} {way}").uniform(0.0, 1.0)
    for size in base.batch_sizes:
        nearest = round(math.log(world.best_lr(size) / anchor, factor))
        lrs = tuple(float(f"{anchor * factor**power:.6g}") for power in range(nearest - 2, nearest + 3))
        results += play(Search(base.replace(batch_sizes=(size,), lrs=lrs)), world.end, workers=2).results
    return results


def replicate(world: World | Momentum, way: str, resamples: int) -> dict[str, Any]:
    return answer(trials(world, way), (TRUTH, MIN_STEPS) if isinstance(world, World) else world.truth, resamples)


HEADINGS = (
    "B_crit: coverage %",
    "half-width",
    "estimate / truth",
    "ok and wrong %",
    "S_min: coverage %",
    "half-width",
)


def cells_of(answers: Sequence[dict[str, Any]]) -> list[str]:
    """What of answers stands under :data:`HEADINGS`."""
    return [
        f"{100 * statistics.mean(one['covered'] for one in answers):.1f}",
        f"{statistics.median(one['width'] for one in answers):.3f}",
        f"{statistics.median(one['estimate'] for one in answers):.3f}",
        f"{100 * statistics.mean(one['verdict'] == 'ok' and not one['covered'] for one in answers):.1f}",
        f"{100 * statistics.mean(one['min_steps_covered'] for one in answers):.1f}",
        f"{statistics.median(one['min_steps_width'] for one in answers):.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=300)
    asked = parser.parse_args()
    headings = ("world", "noise", "learning rates", *HEADINGS)
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    worlds: list[tuple[str, Any]] = [
        ("default, constant", functools.partial(World, 1.0, 0.0)),
        ("default, square root", functools.partial(World, 1.0, 0.5)),
        ("30 x default, square root", functools.partial(World, 30.0, 0.5)),
        ("quadratic, momentum", Momentum),
    ]
    for name, make in worlds:
        for noise in (0.03, 0.10):
            for way in ("search", *GRIDS):
                of = [replicate(make(noise, number), way, asked.resamples) for number in range(asked.replicates)]
                cells = [name, f"{noise:g}", way, *cells_of(of)]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
