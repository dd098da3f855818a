"""From the records of replicates in a folder to bias, coverage and widths, and to the tables of the page."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.stats import binomtest

from analysis.present import style
from benchmarks.calibration.cases import CASES, SEEDS
from benchmarks.calibration.truth import QUANTITIES, Truth
from benchmarks.telling import head, holds, line, renewed

NAMES = {"critical": "B_crit", "min_steps": "S_min", "min_examples": "E_min"}
PREDICTORS = {"l2": "B_simple", "hessian": "B_noise", "preconditioned": "B_pre", "l1": "B_l1"}
BLUE, ORANGE = style.COLOURS[:2]


@dataclass(frozen=True)
class Found:
    """What a folder holds of one case.

    Attributes:
        truth: of the best learning rate of all.
        fine, default: records of trained replicates by grid.
        gradients: see :func:`benchmarks.calibration.gradients.gradients`; ``None`` where it was not run.
    """

    truth: Truth
    fine: list[dict[str, Any]]
    default: list[dict[str, Any]]
    gradients: dict[str, Any] | None


def read(folder: Path) -> dict[str, Found]:
    """By case, those that have a truth."""
    found = {}
    for name in CASES:
        if not (path := folder / f"truth-{name}.json").exists():
            continue
        fine, default = (
            [json.loads(file.read_text()) for file in sorted((folder / grid).glob(f"{name}-*.json"))]
            for grid in ("fine", "default")
        )
        measured = folder / f"gradients-{name}.json"
        gradients = json.loads(measured.read_text()) if measured.exists() else None
        found[name] = Found(Truth.from_json(json.loads(path.read_text())), fine, default, gradients)
    return found


def tables(found: dict[str, Found]) -> dict[str, str]:
    """Markdown by the name of the place it belongs to."""
    return {
        "truth": _table("optimizer", "quantity", "exact", "fitted", "expected loss, exact", "expected loss, fitted")(
            [_truth(name, quantity, of.truth) for name, of in found.items() for quantity in QUANTITIES]
        ),
        "coverage": _table(
            "optimizer", "quantity", "truth", "", "replicates", "bias", "covered", "half width"
        )([
            _estimand(name, row)
            for name, of in found.items() if of.fine
            for row in estimands(of.fine, of.truth) if row["quantity"] == "critical"
        ]),
        "silent": _table("optimizer", "`ok`", "silent, exact", "silent, fitted", "commonest other verdict")(
            [_silent(name, of) for name, of in found.items() if of.fine]
        ),
        "points": _table(
            "optimizer", "batch size", "expected loss", "trials", "seed, s.d.", "trained / trials", "chosen / trained"
        )([_point(name, of, row) for name, of in found.items() if of.fine for row in points(of.fine, of.truth)]),
        "default": _table(
            "optimizer", "quantity", "truth", "", "replicates", "bias", "covered", "half width"
        )([
            _estimand(name, row) for name, of in found.items() if of.default for row in estimands(of.default, of.truth)
        ]),
        "gradients": _table(
            "optimizer", "source", "geometry", "signal, first half", "signal, second", "noise, first", "noise, second",
            "intervals that hold",
        )([_moments(name, row) for name, of in found.items() if of.gradients for row in of.gradients["records"]]),
        "prediction": _table("optimizer", "B_crit", "measured at", *PREDICTORS.values())(
            [_prediction(name, of) for name, of in found.items() if of.gradients]
        ),
    }  # fmt: skip


def fill(page: str, parts: dict[str, str]) -> str:
    """The page with everything between ``<!-- name -->`` and ``<!-- end -->`` replaced."""
    for name, text in parts.items():
        page = renewed(page, f"<!-- {name} -->\n", "<!-- end -->", text)
    return page


def _table(*headings: str) -> Any:
    def rows(cells: Sequence[Sequence[str]]) -> str:
        return "\n".join([head(headings), *map(line, cells), ""]) if cells else "not run\n"

    return rows


def _truth(name: str, quantity: str, truth: Truth) -> list[str]:
    cells = [name, NAMES[quantity]]
    for of in ("trials", "expected loss"):
        for kind in ("exact", "fitted"):
            cells.append(_number(getattr(truth.estimands(of, kind), quantity)))
            if of == "trials":
                cells[-1] += f" ± {100 * getattr(truth.error(kind), quantity):.1f} %"
    return cells


def _estimand(name: str, row: dict[str, Any]) -> list[str]:
    missed = row["quantity"] == "critical" and row["bias"] is not None and abs(row["bias"]) >= BIAS
    low, high = row["coverage_interval"]
    covered = f"{100 * row['coverage']:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
    return [
        name,
        NAMES[row["quantity"]],
        _number(row["truth"]),
        row["kind"],
        str(row["replicates"]),
        _bold(_share(row["bias"], row["bias_error"]), missed),
        _bold(covered, not COVERAGE[0] <= row["coverage"] <= COVERAGE[1]),
        "–" if row["half_width"] is None else f"{row['half_width']:.2f}",
    ]


def _silent(name: str, of: Found) -> list[str]:
    shares = [silent(of.fine, of.truth.estimands("trials", kind).critical) for kind in ("exact", "fitted")]
    others = [record["verdict"] for record in of.fine if record["verdict"] != "ok"]
    commonest = max(set(others), key=others.count) if others else ""
    said = f"{commonest} ({100 * others.count(commonest) / len(of.fine):.0f} %)" if others else "–"
    return [name, f"{100 * shares[0][0]:.0f} %", *(f"{100 * wrong:.0f} %" for _, wrong in shares), said]


def _point(name: str, of: Found, row: dict[str, Any]) -> list[str]:
    best = next(best for best in of.truth.swept if best.batch_size == row["batch_size"])
    trials = f"{row['truth']:.1f} ± {100 * row['truth_error']:.1f} %"
    ratios = [_share(math.expm1(value), error) for value, error in (row["trained"], row["chosen"])]
    return [name, f"{row['batch_size']:g}", f"{row['expected_loss']:.1f}", trials, f"{best.deviation:.3f}", *ratios]


def _moments(name: str, row: dict[str, Any]) -> list[str]:
    cells = []
    for moment in ("signal", "noise"):
        for half in ("first", "second"):
            entry = next((e for e in row["moments"] if (e["moment"], e["half"]) == (moment, half)), None)
            cells.append("–" if entry is None else _share(*entry["bias"]))
    held = f"{row['held']} of {row['intervals']}" if row.get("intervals") else "–"
    return [name, row["source"], row["geometry"], *cells, held]


def _prediction(name: str, of: Found) -> list[str]:
    assert of.gradients is not None
    critical = of.truth.estimands("trials", "exact").critical
    at = of.gradients["batch_sizes"].index(of.gradients["batch_size"])
    cells = []
    for geometry in PREDICTORS:
        scales = of.gradients["scales"].get(geometry)
        cells.append("–" if scales is None else f"{_number(scales[at])} ({scales[at] / critical:.2f})")
    return [name, _number(critical), _number(of.gradients["batch_size"]), *cells]


def _share(value: Any, error: Any) -> str:
    known = value is not None and error is not None and math.isfinite(value + error)
    return f"{100 * value:+.1f} ± {100 * error:.1f} %" if known else "–"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bold(text: str, missed: bool) -> str:
    return f"**{text}**" if missed else text


def draw(found: dict[str, Found], folder: Path) -> list[Path]:
    """Write ``calibration_curves.png`` and ``calibration_intervals.png``."""
    run = {name: of for name, of in found.items() if of.fine}
    paths = []
    for name, panel in (("curves", curves), ("intervals", intervals)):
        with style.style():
            figure, axes = style.grid(len(run))
            for place, (one, (title, of)) in enumerate(zip(axes, run.items(), strict=True)):
                panel(one, of, first=place == 0)
                one.set_title(title)
            paths.append(folder / f"calibration_{name}.png")
            style.save_as(figure, paths[-1])
    return paths


def curves(axes: Axes, of: Found, *, first: bool) -> None:
    """Steps over batch sizes: lines are true, dots are means over replicates of what was measured there."""
    sizes, steps = [best.batch_size for best in of.truth.swept], [best.steps for best in of.truth.swept]
    expected = [best.expected_steps for best in of.truth.swept]
    trained = [row["truth"] * math.exp(row["trained"][0]) for row in points(of.fine, of.truth)]
    label = "steps to loss < 0.1" if first else ""
    style.log_axes(axes, sizes, [*expected, *steps, *trained], "batch size (examples)", label, ticks=sizes)
    axes.plot(sizes, expected, "--", color=style.GREY)
    axes.plot(sizes, steps, "-", color=BLUE)
    axes.plot(sizes, trained, "o", color=ORANGE)
    critical = of.truth.estimands("trials", "exact").critical
    at = math.exp(np.interp(math.log(critical), np.log(sizes), np.log(steps)))
    axes.plot([critical] * 2, [axes.get_ylim()[0], at], ":", color=BLUE, linewidth=0.9)
    if first:
        marks = (
            ("expected loss", "--", "", style.GREY),
            ("trials, simulated", "-", "", BLUE),
            ("trials, trained", "", "o", ORANGE),
            ("B_crit, exact", ":", "", BLUE),
        )
        _explain(axes, marks)


def _explain(axes: Axes, marks: Sequence[tuple[str, str, str, str]]) -> None:
    """Say below the panels what label, line, marker and colour mean."""
    said = [style.mark(name, linestyle=line, marker=marker, color=colour) for name, line, marker, colour in marks]
    style.below(cast(Figure, axes.figure), said)


def intervals(axes: Axes, of: Found, *, first: bool) -> None:
    """Of the critical batch size over its exact truth, sorted; those that miss it are dashed and orange."""
    truth = of.truth.estimands("trials", "exact").critical
    fitted = of.truth.estimands("trials", "fitted").critical
    entries = sorted(
        (record["estimates"]["critical"] for record in of.fine), key=lambda entry: entry["value"] or math.inf
    )
    closed = [end / truth for entry in entries for end in entry["interval"] if end]
    limits = min(closed) / 1.1, max(closed) * 1.1
    for place, entry in enumerate(entries):
        low, high = entry["interval"]
        inside = holds(entry["interval"], truth)
        ends = [(low or 0.0) / truth or limits[0], (high or np.inf) / truth if high else limits[1]]
        axes.plot(ends, [place] * 2, color=BLUE if inside else ORANGE, linewidth=0.8, linestyle="-" if inside else "--")
        if entry["value"]:
            axes.plot(entry["value"] / truth, place, "o", color=BLUE if inside else ORANGE, markersize=1.8)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.axvline(fitted / truth, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    ticks = [tick for tick in (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0) if limits[0] < tick < limits[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([])
    axes.set_xlabel("$B_{crit}$ / exact truth")
    if first:
        axes.set_ylabel("replicates")
        marks = (
            ("interval that holds the exact truth", "-", "o", BLUE),
            ("interval that misses it", "--", "o", ORANGE),
            ("exact truth", "-", "", "black"),
            ("fitted truth", ":", "", "black"),
        )
        _explain(axes, marks)


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
