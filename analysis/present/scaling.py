"""What ``cbs scale`` writes and prints: tables, figures, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.files import in_one_piece
from analysis.present.tables import booktabs, number, percent, with_interval
from analysis.questions.scaling.fits import Law

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.questions.scaling import Scaling

_NAMES = ("E", "N_c", "alpha_N", "S_c", "alpha_S", "B_star", "alpha_B")


def write(scaling: Scaling, *, figures: bool) -> Scaling:
    """Write tables, figures and ``scaling.json`` in one piece.

    Raises:
        ResultsError: if the folder cannot be written.
    """
    with in_one_piece(scaling.output) as draft:
        names = _tables(scaling, draft)
        if figures:
            names += _figures(scaling, draft)
        scaling = replace(scaling, files=tuple(scaling.output / name for name in (*names, "scaling.json")))
        (draft / "scaling.json").write_text(json.dumps(scaling.to_json(), indent=2, allow_nan=False) + "\n")
    return scaling


def _tables(scaling: Scaling, folder: Path) -> list[str]:
    points(scaling).to_csv(folder / "points.csv", index=False)
    summary(scaling).to_csv(folder / "scaling.csv", index=False)
    (folder / "scaling.tex").write_text(latex(scaling))
    names = ["points.csv", "scaling.csv", "scaling.tex"]
    further = {"predictions.csv": predictions(scaling), "three_term.csv": three_term(scaling)}
    for name, table in further.items():
        if len(table):
            table.to_csv(folder / name, index=False)
            names.append(name)
    return names


def _figures(scaling: Scaling, folder: Path) -> list[str]:
    from analysis.present.figures import write_one
    from analysis.present.figures.scaling import SCALING, compute

    drawn: dict[tuple[str, float | None], None] = dict.fromkeys(
        (law.axis, None) for law in scaling.laws if len(law.points) > 1
    )
    drawn |= dict.fromkeys((law.axis, scaling.points[law.points[0]].held_data) for law in scaling.comparisons)
    names = []
    for axis, data in drawn:
        name = "scaling-" + re.sub(r"[^A-Za-z0-9]+", "_", axis) + (f"-data_{data:g}" if data else "")
        names += write_one(SCALING, compute(scaling, axis, data), folder, name)
    return names


def points(scaling: Scaling) -> pd.DataFrame:
    """One row per critical batch size; workload options as columns ``option_<name>``."""
    rows = []
    for index, point in enumerate(scaling.points):
        row: dict[str, Any] = {
            "point": index,
            "sweep": point.sweep,
            "workload": point.workload,
            "optimizer": point.optimizer,
            "metric": point.target.metric,
            "target": point.target.value,
            "critical_batch_size": point.critical,
            "critical_batch_size_low": point.interval[0],
            "critical_batch_size_high": point.interval[1],
            "unit": f"{point.unit}s",
            "parameters": point.parameters,
            "data": point.data,
            "data_low": point.data_interval[0],
            "data_high": point.data_interval[1],
            "data_unit": f"{point.data_unit}s",
            "compute_flops": point.compute,
            "held_data": point.held_data,
        }
        rows.append(row | {f"option_{name}": value for name, value in point.options.items()})
    return pd.DataFrame(rows)


def summary(scaling: Scaling) -> pd.DataFrame:
    """One row per law, set and pool of sets."""
    return pd.DataFrame([_row(law) for law in (*scaling.laws, *scaling.comparisons)])


def _row(law: Law) -> dict[str, Any]:
    fit = law.fit
    row: dict[str, Any] = {
        "kind": law.kind,
        "axis": law.axis,
        "axis_unit": law.unit,
        "workload": law.workload,
        "optimizer": law.optimizer,
        "held": law.held,
        "also_varies": law.varies,
        "points": len(law.points),
        "members": " ".join(map(str, law.points)),
        "x_min": law.x.min() if len(law.x) else None,
        "x_max": law.x.max() if len(law.x) else None,
        "exponent": fit.exponent if fit else None,
        "exponent_low": fit.exponent_interval[0] if fit else None,
        "exponent_high": fit.exponent_interval[1] if fit else None,
        "exponent_of_errors_low": fit.exponent_interval_of_errors[0] if fit else None,
        "exponent_of_errors_high": fit.exponent_interval_of_errors[1] if fit else None,
    }
    one = fit is not None and len(fit.constants) == 1
    kaplan = law.kaplan or {}
    return row | {
        "constant": fit.constants[0] if fit and one else None,
        "constant_low": fit.constant_intervals[0][0] if fit and one else None,
        "constant_high": fit.constant_intervals[0][1] if fit and one else None,
        "scatter": fit.scatter.total if fit and fit.scatter else None,
        "freedom": fit.freedom if fit else None,
        "residual_rms": fit.residual_rms if fit else None,
        "B_star": kaplan.get("B_star"),
        "alpha": kaplan.get("alpha"),
        "alpha_low": kaplan["alpha_interval"][0] if kaplan else None,
        "alpha_high": kaplan["alpha_interval"][1] if kaplan else None,
        "remark": law.remark,
    }


def predictions(scaling: Scaling) -> pd.DataFrame:
    """One row per law and value asked for."""
    return pd.DataFrame(
        [
            {
                "axis": law.axis,
                "axis_unit": law.unit,
                "optimizer": law.optimizer,
                "x": entry.x,
                "critical_batch_size": entry.critical,
                "low": entry.interval[0],
                "high": entry.interval[1],
                "times_beyond_the_data": entry.beyond,
            }
            for law in scaling.laws
            for entry in law.predictions
        ]
    )


def three_term(scaling: Scaling) -> pd.DataFrame:
    """One row per workload, optimizer and parameter of the law in three terms."""
    return pd.DataFrame(
        [
            {
                "workload_and_optimizer": name,
                "parameter": key,
                "value": law.values[key],
                "low": law.intervals[key][0],
                "high": law.intervals[key][1],
                "residual_rms": law.residual_rms,
                "points": law.points,
            }
            for name, law in scaling.three_term.items()
            for key in _NAMES
            if key in law.values
        ]
    )


def amount(value: float | None) -> str:
    """A number, in powers of ten from ten million on and below a thousandth."""
    if value is None or not (abs(value) >= 1e7 or 0 < abs(value) < 1e-3):
        return number(value)
    return f"{value:.3g}"


def _range(law: Law) -> str:
    if not len(law.x):
        return number(None)
    return f"{_short(law.x.min())}–{_short(law.x.max())} {law.unit}".strip()


def _short(value: float) -> str:
    for limit, suffix in ((1e12, None), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value:.2g}" if suffix is None else f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[suffix]:.3g}{suffix}"
    return number(value)


def _cells(law: Law) -> list[str]:
    fit = law.fit
    constant = amount(fit.constants[0]) if fit and len(fit.constants) == 1 else number(None)
    return [
        law.axis,
        law.optimizer,
        {"law": "all points", "pooled": law.held}.get(law.kind, law.held),
        str(len(law.points)),
        _range(law),
        with_interval(fit.exponent, fit.exponent_interval) if fit else number(None),
        constant,
    ]


_HEADINGS = ("against", "optimizer", "equal", "points", "range", "k", "c")


def latex(scaling: Scaling) -> str:
    """Laws and comparisons as a LaTeX ``tabular`` for the booktabs package, all text escaped."""
    heads = {"k": "$k$", "c": "$c$"}
    rows = [_cells(law) for law in (*scaling.laws, *scaling.comparisons)]
    return booktabs(
        f"B_crit = c x^k, B_crit in {_unit(scaling)}; brackets: {percent(scaling.config.confidence)} percent interval",
        "lllrlrr",
        [heads.get(name, name) for name in _HEADINGS],
        rows,
    )


def _unit(scaling: Scaling) -> str:
    units = {f"{point.unit}s" for point in scaling.points}
    return units.pop() if len(units) == 1 else "examples"


def show(scaling: Scaling, console: Console) -> None:
    """The tables in the terminal, then what was left out, then where the files are."""
    console.print(
        f"{len(scaling.points)} critical batch sizes ({scaling.config.definition}), B_crit = c x^k in "
        f"{_unit(scaling)}, [{100 * scaling.config.confidence:g} % interval]; data: {scaling.data}",
        markup=False,
        soft_wrap=True,
    )
    if scaling.laws:
        console.print(_table("Laws", scaling.laws, without="equal"))
        for line in dict.fromkeys(line for law in scaling.laws for line in _remarks(law)):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if scaling.comparisons:
        console.print(_table("All else equal", scaling.comparisons, without="c"))
        pooled = {_pool(scaling, law) for law in scaling.comparisons if law.kind == "pooled"}
        for law in scaling.comparisons:
            # what holds for every set holds for the pool, which says it once
            if law.remark and (law.kind == "pooled" or _pool(scaling, law) not in pooled):
                console.print(f"  {law.axis}, {law.optimizer}, {law.held}: {law.remark}", markup=False, soft_wrap=True)
    for name, terms in scaling.three_term.items():
        console.print(f"\nL = E + (N_c/N)^alpha_N + (S_c/S_min)^alpha_S, {name}", markup=False)
        for key in _NAMES:
            if key in terms.values:
                ends = terms.intervals[key]
                console.print(f"  {key:8} {_with_interval(terms.values[key], ends)}", markup=False)
        bias = ", ".join(f"{amount(size)}: {100 * value:+.1f} %" for size, value in terms.bias.items())
        console.print(
            f"  residual of ln S {terms.residual_rms:.3g} rms over {terms.points} points; mean by size {bias}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
        for remark in terms.terms.remarks:
            console.print(f"  {remark}", markup=False, soft_wrap=True)
    for note in scaling.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(
        f"files: {scaling.output}: {', '.join(path.name for path in scaling.files)}", markup=False, soft_wrap=True
    )


def _pool(scaling: Scaling, law: Law) -> tuple[str, str, str, float | None]:
    return law.axis, law.workload, law.optimizer, scaling.points[law.points[0]].held_data


def _remarks(law: Law) -> list[str]:
    name = f"{law.axis}, {law.optimizer}"
    lines = [f"{name}: {law.remark}"] if law.remark else []
    if law.varies and law.fit:
        lines.append(f"not equal between the points against {law.axis}: {law.varies}")
    kaplan = law.kaplan
    if kaplan:
        star = _with_interval(kaplan["B_star"], kaplan["B_star_interval"])
        alpha = _with_interval(kaplan["alpha"], kaplan["alpha_interval"])
        lines.append(f"{name}: B_crit = B*/L^(1/alpha) with B* = {star}, alpha = {alpha}")
    for entry in law.predictions:
        where = f", extrapolated {entry.beyond:.3g} times beyond the data" if entry.beyond > 1 else ""
        value = _with_interval(entry.critical, entry.interval)
        lines.append(f"{name}: at {amount(entry.x)} {law.unit}".rstrip() + f" {value}{where}")
    return lines


def _with_interval(value: float | None, ends: Sequence[float | None]) -> str:
    low, high = ends
    if low is None and high is None:
        return f"{amount(value)} [not bounded]"
    return f"{amount(value)} [{'0' if low is None else amount(low)}, {'∞' if high is None else amount(high)}]"


def _table(title: str, laws: Sequence[Law], *, without: str) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    kept = [index for index, name in enumerate(_HEADINGS) if name != without]
    for index in kept:
        numeric = _HEADINGS[index] in ("points", "k", "c")
        table.add_column(
            _HEADINGS[index],
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=_HEADINGS[index] != "equal",
        )
    for law in laws:
        cells = _cells(law)
        cells[_HEADINGS.index("equal")] = cells[_HEADINGS.index("equal")].replace("validation_", "")
        table.add_row(*(Text(cells[index]) for index in kept))
    return table
