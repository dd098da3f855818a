"""Whether the interval of the critical batch size holds the truth after a search: search, then analysis, on simulated
laws.

Learning rates and seeds are chosen together, on few trials, and the winner's are the steps that are fitted. The worlds
are those of :mod:`benchmarks.search_worlds`, whose best steps are a hyperbola. Beside it stands a grid that tries every
learning rate within a factor of 4 of the best on every seed: what is lost against it is the search's. ``python -m
benchmarks.search_coverage [--replicates 200]``.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import math
import statistics
from collections.abc import Iterable
from itertools import product
from typing import Any

import pandas as pd

from analysis.config import AnalysisConfig
from analysis.questions.fit_table import fit_table
from benchmarks.search_worlds import DEFAULT, MIN_EXAMPLES, MIN_STEPS, SIZES, World, sweep
from cbs.record import TrialResult, TrialStatus
from sweeps.search.forecast import play
from sweeps.search.search import Search

TRUTH = MIN_EXAMPLES / MIN_STEPS


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


def answer(results: Iterable[TrialResult], resamples: int) -> dict[str, Any]:
    found = fit_table(table(results), AnalysisConfig(resamples=resamples)).answers[0]
    low, high = found.interval
    covered = (low is None or low <= TRUTH) and (high is None or high >= TRUTH)
    width = math.log(high / low) / 2 if low and high else math.inf
    return {
        "covered": covered,
        "width": width,
        "estimate": found.critical_batch_size or math.nan,
        "verdict": str(found.verdict),
    }


def replicate(world: World, resamples: int) -> dict[str, dict[str, Any]]:
    base = sweep(world)
    found = {"search": answer(play(Search(base), world.end, workers=2).results, resamples)}
    grid = []
    for size in SIZES:
        nearest = round(math.log2(world.best_lr(size) / DEFAULT))
        lrs = tuple(float(f"{DEFAULT * 2.0**power:.6g}") for power in range(nearest - 2, nearest + 3))
        grid += play(Search(base.replace(batch_sizes=(size,), lrs=lrs)), world.end, workers=2).results
    return found | {"grid": answer(grid, resamples)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=300)
    asked = parser.parse_args()
    headings = (
        "distance",
        "slope",
        "noise",
        "search: coverage %",
        "half-width",
        "estimate / truth",
        "ok and wrong %",
        "grid: coverage %",
        "half-width",
        "estimate / truth",
        "ok and wrong %",
    )
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for distance, slope, noise in product((1.0, 30.0), (0.0, 0.5), (0.03, 0.10)):
        rows = [replicate(World(distance, slope, noise, number), asked.resamples) for number in range(asked.replicates)]
        cells = [f"{distance:g}", f"{slope:g}", f"{noise:g}"]
        for name in ("search", "grid"):
            of = [row[name] for row in rows]
            cells += [
                f"{100 * statistics.mean(one['covered'] for one in of):.1f}",
                f"{statistics.median(one['width'] for one in of):.3f}",
                f"{statistics.median(one['estimate'] for one in of) / TRUTH:.3f}",
                f"{100 * statistics.mean(one['verdict'] == 'ok' and not one['covered'] for one in of):.1f}",
            ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
