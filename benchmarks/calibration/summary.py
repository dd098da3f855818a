"""From the records of replicates to bias, coverage and widths."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.calibration.cases import SEEDS
from benchmarks.calibration.truth import QUANTITIES, Truth
from benchmarks.telling import holds

BIAS, COVERAGE = 0.05, (0.92, 0.98)
"""What calibration means: the bias of the critical batch size below, coverage between."""

Record = Mapping[str, Any]


def against(records: Sequence[Record], quantity: str, truth: float) -> dict[str, Any]:
    """Bias (relative, of the geometric mean), its standard error, coverage with the 95 % interval of Clopper and
    Pearson, the median half width of the logarithm, and how many have no value or an open end."""
    estimates = [record["estimates"][quantity] for record in records]
    logs = np.log([entry["value"] / truth for entry in estimates if entry["value"]])
    inside = sum(holds(entry["interval"], truth) for entry in estimates)
    ends = binomtest(inside, len(estimates)).proportion_ci(0.95) if estimates else (math.nan, math.nan)
    closed = [entry["interval"] for entry in estimates if all(entry["interval"])]
    return {
        "truth": truth,
        "replicates": len(estimates),
        "bias": math.expm1(logs.mean()) if len(logs) else None,
        "bias_error": float(logs.std(ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else None,
        "spread": float(logs.std(ddof=1)) if len(logs) > 1 else None,
        "coverage": inside / len(estimates) if estimates else None,
        "coverage_interval": [float(end) for end in ends],
        "half_width": median(math.log(high / low) / 2 for low, high in closed) if closed else None,
        "without_value": sum(entry["value"] is None for entry in estimates),
        "open": len(estimates) - len(closed),
    }


def estimands(records: Sequence[Record], truth: Truth) -> list[dict[str, Any]]:
    """One row per quantity and estimand of the trials' curve; ``E_min`` is that of the hyperbola."""
    rows = []
    for quantity in QUANTITIES:
        for kind in ("exact", "fitted"):
            value = getattr(truth.estimands("trials", kind), quantity)
            error = getattr(truth.error(kind), quantity)
            rows.append({"quantity": quantity, "kind": kind, "truth_error": error} | against(records, quantity, value))
    return rows


def silent(records: Sequence[Record], truth: float) -> tuple[float, float]:
    """Shares of verdicts ``ok``, and of those that are while the critical batch size lies outside its interval."""
    good = [record for record in records if record["verdict"] == "ok"]
    wrong = [record for record in good if not holds(record["estimates"]["critical"]["interval"], truth)]
    return len(good) / len(records), len(wrong) / len(records)


def points(records: Sequence[Record], truth: Truth) -> list[dict[str, Any]]:
    """By batch size: steps at the best learning rate of all, over the truth; and at the chosen one, over those.

    ``trained`` compares the training loop and its crossings with the exact simulation, at one and the same learning
    rate, with the standard error that the known deviation of a seed gives; ``chosen`` is what choosing the fastest of
    the grid does, with the standard error over replicates.
    """
    rows = []
    for place, best in enumerate(truth.swept):
        found = [record["points"][place] for record in records]
        middle = [entry["table"][len(entry["table"]) // 2] for entry in found]
        at_best = np.array([np.mean(np.log(row)) for row in middle if None not in row])
        chosen = np.array(
            [
                np.mean(np.log(entry["steps"])) - np.mean(np.log(row))
                for entry, row in zip(found, middle, strict=True)
                if None not in row
            ]
        )
        rows.append(
            {
                "batch_size": best.batch_size,
                "truth": best.steps,
                "truth_error": best.error,
                "expected_loss": best.expected_steps,
                "replicates": len(at_best),
                "trained": (
                    float(at_best.mean() - math.log(best.steps)) if len(at_best) else math.nan,
                    math.hypot(best.deviation / math.sqrt(max(SEEDS * len(at_best), 1)), best.error),
                ),
                "chosen": mean(chosen),
                "at_edge": sum(bool(entry["at_grid_edge"]) for entry in found) / len(found),
            }
        )
    return rows


def mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error; NaN below two values."""
    if len(values) < 2:
        return math.nan, math.nan
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
