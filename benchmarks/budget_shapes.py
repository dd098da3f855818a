"""How often the largest batch size within a margin is right where the loss is a known function of the batch size.

Nine batch sizes from 4 to 1024 at one learning rate. The loss of a run is the function plus normal noise of 0.01, part
of which a seed does to all batch sizes. Losses are smooth, or flat up to some size and then rise at once: between two
sizes, so that where they pass the margin is not seen. ``python -m benchmarks.budget_shapes`` prints a table of
benchmarks/tables.md.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.comparison import Standing
from analysis.estimate.objective import draw_losses, loss_studies
from analysis.quantities import Array
from analysis.questions.budget.comparisons import equivalence
from benchmarks.budget_truth import study_of

SIZES = np.asarray(2.0 ** np.arange(2, 11), dtype=float)
NOISE, MARGIN = 0.01, 0.02
CASES = ((5, 0.9), (5, 0.0), (3, 0.0))
"""Seeds, and the correlation of the runs of one."""


def _rise(size: float, slope: float, sizes: Array) -> Array:
    return np.asarray(slope * np.maximum(np.log(sizes / size), 0.0))


SHAPES: dict[str, dict[str, Callable[[Array], Array]]] = {
    "smooth": {
        "saturating, from 64": lambda sizes: 0.1 * np.log1p(sizes / 64),
        "saturating, from 20": lambda sizes: 0.1 * np.log1p(sizes / 20),
        "power 0.5": lambda sizes: 0.05 * (sizes / 64) ** 0.5,
        "power 1": lambda sizes: 0.05 * sizes / 256,
        "best at 32": lambda sizes: 0.02 * np.log(sizes / 32) ** 2,
        "best at 50": lambda sizes: 0.02 * np.log(sizes / 50) ** 2,
    },
    "flat, then rising": {
        f"{slope:g} from {size}": functools.partial(_rise, size, slope)
        for slope in (0.08, 0.25)
        for size in (20, 28, 40, 56)
    },
}


def truth(shape: Callable[[Array], Array]) -> float:
    """Largest batch size within the margin of the best one that is run."""
    fine = np.asarray(np.geomspace(SIZES[0], SIZES[-1], 10_000), dtype=float)
    over = shape(fine) > shape(SIZES).min() + MARGIN
    return float(fine[np.flatnonzero(~over)[-1]])


def measured(shape: Callable[[Array], Array], seeds: int, common: float, turn: int) -> dict[str, float]:
    """Whether one simulated sweep is right, and how wide its interval is."""
    rng, exact, largest = np.random.default_rng([turn, 5]), shape(SIZES), truth(shape)
    own = math.sqrt(1 - common) * rng.standard_normal((len(SIZES), seeds))
    losses = 3 + exact[:, None] + NOISE * (math.sqrt(common) * rng.standard_normal(seeds) + own)
    tables = [row[None] for row in losses]
    studies = [study_of(int(size), np.ones(1), table) for size, table in zip(SIZES, tables, strict=True)]
    answer = equivalence(draw_losses(*loss_studies(studies, tables), AnalysisConfig(resamples=1000)), MARGIN, 0.95)
    first, last = answer.largest_within.interval
    low, high = math.log((first or SIZES[0]) / largest), math.log((last or math.inf) / largest)
    equal = np.array([each.standing is Standing.EQUAL for each in answer.excesses])
    return {
        "above": low > 1e-3,
        "below": high < -1e-3,
        "closed": math.isfinite(high),
        "width": high - low,
        "equal wrongly": bool((equal & (exact - exact.min() >= MARGIN)).any()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=200, help="of every loss")
    parser.add_argument("--first", type=int, default=50_000, help="seed of the first sweep")
    given = parser.parse_args()
    names = (
        "covered",
        "least of a loss",
        "truth below",
        "truth above",
        "median ln(high/low)",
        "closed",
        '"equal" wrongly',
    )
    print(f"| seeds | correlation | losses | {' | '.join(names)} |\n|{'---|' * (len(names) + 3)}", flush=True)
    for seeds, common in CASES:
        for kind, shapes in SHAPES.items():
            turns = range(given.first, given.first + given.sweeps)
            found = [[measured(shape, seeds, common, turn) for turn in turns] for shape in shapes.values()]
            table = {name: np.array([[row[name] for row in rows] for rows in found]) for name in found[0][0]}
            right = 1.0 - (table["above"] | table["below"]).mean(axis=1)
            shares = (right.mean(), right.min(), table["above"].mean(), table["below"].mean())
            cells = [f"{100 * share:.1f} %" for share in shares] + [f"{np.median(table['width']):.2f}"]
            cells += [f"{100 * table[name].mean():.1f} %" for name in ("closed", "equal wrongly")]
            print(f"| {seeds} | {common:g} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
