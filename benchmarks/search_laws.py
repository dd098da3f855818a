"""Searches on laws they were not made for: whether the answer is interior and its interval holds the truth, or says so.

Steps to the target are the hyperbola of :mod:`benchmarks.search_worlds` times a rise by learning rate and batch size
that a law gives; 5 % seed noise, nine batch sizes, three seeds. Where a law says so a learning rate diverges, or stays
at a share of the distance to the target. ``python -m benchmarks.search_laws
[--sweeps 10] [--law NAME]``.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.calibration.truth import fitted
from benchmarks.search_coverage import answer
from benchmarks.search_worlds import DEFAULT, DIVERGES_AFTER, MIN_EXAMPLES, MIN_STEPS, SIZES, World, sweep
from cbs.trial.config import TrialConfig
from sweeps.search.forecast import End, play
from sweeps.search.search import Search

NOISE = 0.05
FLAT = 0.9
"""Share of the distance to the target that is left where nothing moves."""

MIDDLE = SIZES[len(SIZES) // 2]
DIVERGED, STUCK = math.inf, math.nan
Law = Callable[[float, int], float]
"""Rise of ln steps by ln of lr over the default (sqrt(B / 64) taken off) and the batch size."""


def window(width: float, beyond: float) -> Law:
    """Reached within ``width`` of the best alone; stuck below."""
    return lambda at, size: 0.5 * (at - 2) ** 2 if abs(at - 2) < width else STUCK if at < 2 else beyond


def moved(by: Callable[[float], float]) -> Law:
    """A parabola around an optimum that ``by`` moves with ln B."""
    return lambda at, size: 0.25 * (at - by(math.log(size / MIDDLE))) ** 2


LAWS: dict[str, Law] = {
    "parabola": lambda at, size: 0.25 * at**2,
    "1 / lr up to a cliff": lambda at, size: DIVERGED if at > 1 else 1 - at,
    "cliff above the optimum": lambda at, size: DIVERGED if at > 0.15 else 0.25 * at**2,
    "jumps": moved(lambda size: -size / 2 + math.log(20) * ((size > 0) - (abs(size + 2.1) < 0.1))),
    "sine": moved(lambda size: 1.5 * math.sin(1.3 * size) - size / 2),
    "falls": moved(lambda size: -1.5 * size),
    "window": window(0.6, STUCK),
    "narrow window": window(0.3, STUCK),
    "narrow window, cliff": window(0.3, DIVERGED),
    "steep above": lambda at, size: 2 * at**2 if at > 0 else -0.15 * at,
    "steep below": lambda at, size: 0.05 * at if at > 0 else 1.5 * at**2,
    "flat": lambda at, size: 0.01 * at**2,
    "two optima": lambda at, size: min(0.15 + 0.25 * at**2, 0.5 * (at - math.log(60)) ** 2),
    "two optima, near": lambda at, size: min(0.15 + 0.5 * at**2, 0.5 * (at - math.log(8)) ** 2),
    "two optima, one at large batches": lambda at, size: min(
        0.25 * at**2, (0.2 if size < 2 * MIDDLE else -0.2) + 0.5 * (at - math.log(30)) ** 2
    ),
}


def curve(batch_size: int) -> float:
    return math.log(MIN_STEPS + MIN_EXAMPLES / batch_size)


def place(lr: float, batch_size: int) -> float:
    return math.log(lr / DEFAULT) - 0.5 * math.log(batch_size / MIDDLE)


def end_of(law: Law, number: int) -> Callable[[TrialConfig], End]:
    off = random.Random(number).uniform(-0.35, 0.35)

    def end(config: TrialConfig) -> End:
        rise = law(place(config.lr, config.batch_size) - off, config.batch_size)
        if rise == DIVERGED:
            return End(DIVERGES_AFTER, reached=False, distance=math.inf)
        draw = random.Random(f"{number} {config.batch_size} {config.lr} {config.seed}").gauss(0.0, NOISE)
        steps = math.exp(curve(config.batch_size) + rise + draw)
        if math.isnan(rise):
            return End(config.max_steps, reached=False, distance=FLAT)
        if steps > config.max_steps:
            return End(config.max_steps, reached=False, distance=1.0 - config.max_steps / steps)
        return End(steps)

    return end


def least(law: Law, batch_size: int) -> float:
    return float(np.nanmin([law(at, batch_size) for at in np.linspace(-9.0, 9.0, 3601)]))


def replicate(law: Law, number: int) -> dict[str, Any]:
    search = Search(sweep(World(1.0, 0.0, 0.0, 0)))
    played = play(search, end_of(law, number), workers=2)
    steps = np.array([math.exp(curve(size) + least(law, size)) for size in SIZES])
    true = fitted(np.array(SIZES, dtype=float), steps)
    inside = sum(search.interior(study) for study in search.sweep.studies())
    return {"inside": inside, **answer(played.results, (true.critical, true.min_steps), 300)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--law", action="append", choices=list(LAWS), metavar="NAME", help="repeatable")
    asked = parser.parse_args()
    print(
        "| law | interior | B_crit covered | ok and wrong | S_min covered | half-width | verdicts |\n"
        + "|---" * 7
        + "|"
    )
    for name in asked.law or LAWS:
        of = [replicate(LAWS[name], number) for number in range(asked.sweeps)]
        cells = [
            name,
            f"{sum(one['inside'] for one in of)} of {len(of) * len(SIZES)}",
            str(sum(one["covered"] for one in of)),
            str(sum(one["verdict"] == "ok" and not one["covered"] for one in of)),
            str(sum(one["min_steps_covered"] for one in of)),
            f"{statistics.median(one['width'] for one in of):.2f}",
            str(dict(Counter(one["verdict"] for one in of))),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
