"""Search and analysis on the noisy quadratic, updated step by step in numpy: coverage of B_crit and S_min.

The cases of :mod:`benchmarks.calibration` for a thirtieth of what training them takes: trials of a seed share their
start, those of a seed and batch size their noise, and a trial ends at the first evaluation below the target. The truth
is that of the curve fitted to trials at the best of all learning rates. The default learning rate lies alike in all
replicates, and what is left between those that a search tries with it; ``--anywhere`` moves the optima by up to half
an octave, in every replicate otherwise.
``python -m benchmarks.search_quadratic [--replicates 200] [--case momentum] [--anywhere]``.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.calibration.cases import CASES, PLAN, TARGET, Case
from benchmarks.calibration.replicates import seeds_of
from benchmarks.search_coverage import HEADINGS, answer, cells_of
from cbs.trial.config import TrialConfig
from sweeps.search.forecast import End, play
from sweeps.search.search import Search

TRUTH = {"sgd": (31.7, 59.7), "momentum": (395.0, 30.4), "preconditioned": (397.0, 11.7)}
"""B_crit and S_min, fitted, of trials; the first two at learning rates 2^(1/32) apart, see docs/calibration.md."""

DIVERGED = 5.0
"""Times the distance to the target at the start."""


def end_of(case: Case, moved: float = 0.0) -> Callable[[TrialConfig], End]:
    """How trials of a case end, its best learning rates ``moved`` up by so many octaves."""
    model = case.theory
    h, preconditioner = model.curvature, model.preconditioner(case.power)

    def end(config: TrialConfig) -> End:
        theta = np.random.default_rng([0, config.seed]).standard_normal(len(h))
        rng = np.random.default_rng([1, config.seed, config.batch_size])
        noise, scale = np.sqrt(model.noise / config.batch_size), config.lr * 2.0**-moved * preconditioner
        speed = 0.0 * theta
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


def replicate(case: Case, index: int, resamples: int, *, anywhere: bool = False) -> dict[str, Any]:
    """As :func:`benchmarks.search_coverage.answer`, and the share of studies with an interior optimum."""
    search = Search(case.sweep(seeds_of(index)))
    moved = random.Random(index).uniform(-0.5, 0.5) if anywhere else 0.0
    played = play(search, end_of(case, moved), workers=2)
    inside = statistics.mean(search.interior(study) for study in search.sweep.studies())
    return {"inside": inside, **answer(played.results, TRUTH[case.name], resamples)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--case", action="append", choices=list(CASES), metavar="NAME", help="repeatable")
    parser.add_argument("--anywhere", action="store_true", help="optima elsewhere between learning rates every time")
    asked = parser.parse_args()
    headings = ("case", *HEADINGS, "interior %")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for name in asked.case or CASES:
        case, indices = CASES[name], range(asked.replicates)
        of = [replicate(case, index, asked.resamples, anywhere=asked.anywhere) for index in indices]
        inside = f"{100 * statistics.mean(one['inside'] for one in of):.1f}"
        cells = [name, *cells_of(of), inside]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
