"""Search and analysis on the noisy quadratic, updated step by step in numpy: coverage of B_crit and S_min.

The cases of :mod:`benchmarks.calibration` for a thirtieth of what training them takes: trials of a seed share their
start, those of a seed and batch size their noise, and a trial ends at the first evaluation below the target. The truth
is that of the curve fitted to trials at the best of all learning rates, from docs/calibration.md.
``python -m benchmarks.search_quadratic [--replicates 200] [--case momentum]``.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.calibration.cases import CASES, PLAN, TARGET, Case
from benchmarks.calibration.replicates import seeds_of
from benchmarks.search_coverage import HEADINGS, answer, cells_of
from cbs.config import TrialConfig
from sweeps.search.forecast import End, play
from sweeps.search.search import Search

TRUTH = {"sgd": (30.8, 60.9), "momentum": (380.0, 31.1), "preconditioned": (397.0, 11.7)}
"""B_crit and S_min, fitted, of trials."""

DIVERGED = 5.0
"""Times the distance to the target at the start."""


def end_of(case: Case) -> Callable[[TrialConfig], End]:
    """How trials of a case end."""
    model = case.theory
    h, preconditioner = model.curvature, model.preconditioner(case.power)

    def end(config: TrialConfig) -> End:
        theta = np.random.default_rng([0, config.seed]).standard_normal(len(h))
        rng = np.random.default_rng([1, config.seed, config.batch_size])
        noise, scale, speed = np.sqrt(model.noise / config.batch_size), config.lr * preconditioner, 0.0 * theta
        at, before = 0, _distance(theta, h)
        reach = before
        while at < config.max_steps:
            far = before > PLAN.near_fraction * reach
            coming = max(at + 1, math.ceil(at * (PLAN.far_growth if far else PLAN.growth)))
            coming = min(coming, config.max_steps)
            with np.errstate(over="ignore", invalid="ignore"):
                for _ in range(at, coming):
                    speed = case.momentum * speed - scale * (h * theta + noise * rng.standard_normal(len(h)))
                    theta = theta + speed
                now = _distance(theta, h)
            if not now <= DIVERGED * reach:
                return End(float(coming), reached=False, distance=math.inf)
            if now < 0:
                return End(float(coming if at == 0 else at * (coming / at) ** (before / (before - now))))
            at, before = coming, now
        return End(float(at), reached=False, distance=before / reach)

    return end


def _distance(theta: np.ndarray, curvature: np.ndarray) -> float:
    return float(0.5 * np.square(theta) @ curvature) - TARGET.value


def replicate(case: Case, index: int, resamples: int) -> dict[str, Any]:
    """As :func:`benchmarks.search_coverage.answer`, and the share of studies with an interior optimum."""
    search = Search(case.sweep(seeds_of(index)))
    played = play(search, end_of(case), workers=2)
    inside = statistics.mean(search.interior(study) for study in search.sweep.studies())
    return {"inside": inside, **answer(played.results, TRUTH[case.name], resamples)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--case", action="append", choices=list(CASES), metavar="NAME", help="repeatable")
    asked = parser.parse_args()
    headings = ("case", *HEADINGS, "interior %")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for name in asked.case or CASES:
        of = [replicate(CASES[name], index, asked.resamples) for index in range(asked.replicates)]
        inside = f"{100 * statistics.mean(one['inside'] for one in of):.1f}"
        cells = [name, *cells_of(of), inside]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
