"""Critical batch sizes from a plain table of batch sizes and steps to target, such as one from a paper.

The rows become the studies that a sweep would have produced, so fit, interval, definitions, verdict and figures are
those of ``cbs analyze``.
"""

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.definitions import chosen
from analysis.estimate.estimates import Reading, TableTarget, estimates, known_value
from analysis.estimate.studies import Study, one_study
from analysis.present.findings import Analysis
from analysis.quantities import Array
from analysis.read import cells
from analysis.read.cells import shown
from analysis.read.groups import Group
from analysis.read.table import Sheet, read_table
from analysis.read.titles import doubt, factors, of_part, whole_batch, with_products
from cbs.errors import ConfigError, DataError
from cbs.registry.choices import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target

TABLE = "the table"  # Name of the only curve
_FEWEST_OF_A_GRAIN = 4  # Number of different step counts below which a common divisor may be chance
_FEWEST_AT_A_BUDGET = 3  # Number of rows with the same, largest step count below which this may be chance
_LEAST_BUDGET = 100  # Below this many steps neighbouring batch sizes can easily take the same whole number of steps

_EXACT = 1e-6  # Three decimals are thousands in some countries, if no digit is behind them
_NOT_REACHED = "every row is censored or empty: read the steps at an easier target, or run longer"
_EPOCHS = (
    "no batch size takes fewer steps than a smaller one: if these are epochs of N examples, give --column "
    "'steps=steps*N/batch_size'; curves against epochs take cbs import --examples-per-epoch N"
)
# Range of batch sizes, steps and learning rates: numbers beyond it are mistakes; within it products do not
# overflow.
SMALLEST, LARGEST = 1e-6, 1e15

# Titles of columns that may be meant; the user has to confirm
_UNLIKE = {
    "batch_size": ("batch", "bs", "size", "batch_tokens", "tokens", "batch_examples", "global_batch_size"),
    "steps": ("step", "steps_to_target", "iterations", "iters", "updates"),
}

_TRAINED_ON = ("examples", "samples", "sequences", "tokens")  # Titles of what was trained on, in place of steps

# In a title: the column holds the scatter or the logarithm of what is looked for, or a part of it
_OTHERWISE = re.compile("std|sem|var|err|log|ln|per_|micro_|local_")

# Titles of columns that may say which runs did not reach the target
_ENDS = ("status", "state", "outcome", "reached", "converged", "diverged", "failed", "finished", "success", "succeeded")


@dataclass(frozen=True, kw_only=True)
class TableFit(Analysis):
    """Result of :func:`fit_table`, with one answer per group, optimizer and target.

    Attributes:
        names: group and optimizer of every answer as in the table; ``None`` if there is no such column.
        unit: what the batch size counts, in words.
    """

    name: str
    names: tuple[tuple[str | None, str | None], ...]
    unit: str

    @property
    def headings(self) -> dict[str, str]:
        groups, optimizers = ({name for name in each if name is not None} for each in zip(*self.names, strict=True))
        return {"workload": "group"} | ({} if optimizers else {"optimizer": "group" if groups else "table"})

    def to_json(self) -> dict[str, Any]:
        left_out = ("sweep", "workload", "optimizer_options", "metric_unit", "example_unit", "matched_geometry")
        fits = []
        for answer, (group, optimizer) in zip(self.answers, self.names, strict=True):
            whole = _without_noise_scales(answer.to_json())
            fit = {"group": group} | {key: value for key, value in whole.items() if key not in left_out}
            fit |= {"optimizer": optimizer, "target": known_value(answer.target), "confidence": answer.confidence}
            fit |= {"options": answer.critical.options, "points": list(map(_without_noise_scales, whole["points"]))}
            fits.append(fit)
        return {"table": self.name, "unit": self.unit, "fits": fits, "notes": list(self.notes)}


def _without_noise_scales(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if "noise_scale" not in key}


def fit_table(
    source: str | os.PathLike[str] | pd.DataFrame,
    config: AnalysisConfig = DEFAULT,
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
) -> TableFit:
    """Fit every curve of a table: one per group, optimizer and target.

    Args:
        source: a CSV, TSV or Parquet file, ``-`` for standard input, or a table in memory, with the columns
            ``batch_size`` and ``steps`` and, optionally, ``optimizer``, ``group``, ``seed``, ``lr``, ``censored``,
            ``target`` and ``tokens_per_example``.
        columns: titles of columns in the table, by the names used here, where they differ.
        unit: what ``batch_size`` counts, in the plural: ``sequences``.

    Raises:
        DataError: if the table cannot be used; the message names table, row and remedy.
        ConfigError: if ``columns`` or ``unit`` is invalid.

    Example:

        >>> steps = {4: 2060, 8: 1080, 16: 600, 32: 352, 64: 240, 128: 178, 256: 150}
        >>> table = pd.DataFrame({"batch_size": list(steps), "steps": list(steps.values())})
        >>> print(fit_table(table, unit="sequences").answers[0].judgement)
        too few seeds: one seed: run 3 or more before comparing optimizers
    """
    if unit is not None and not (unit.strip() and unit.isprintable()):
        raise ConfigError(f"--unit must be a word such as sequences, got {unit!r}")
    name, rows, unused = read(source, columns, unit or "tokens")
    notes = [f"columns that are not used: {', '.join(unused)}"] if unused else []
    if unit is None:
        notes.append("batch sizes are in examples, as in the table; say what they are with --unit sequences")
    broken, fractions = (rows.loc[rows[name] % 1 > 0, name] for name in ("batch_size", "steps"))
    doubtful = [f"batch size {size:g}" for size in broken[:1] if unit is None]
    if rows["steps"].max() < 1000 and np.allclose(fractions * 1000 % 1, 0, atol=_EXACT):
        doubtful += [f"steps {steps:g}" for steps in fractions[:1]]
    point = "the point is read as a decimal point, not as a thousands separator"
    notes += [f"{what} is not whole: {point}" for what in doubtful]
    whole = unit.strip() if unit else "examples"
    one = whole[:-1] if len(whole) > 1 and whole.endswith("s") else whole
    chosen(config)
    names, curves = [], []
    for _, members in rows.groupby(["group", "optimizer"], sort=False, dropna=False):
        about = _group(name, members, one)
        readings = []
        for value, part in members.groupby("target", dropna=False):
            target = _target(value)
            least = part[~part["censored"].astype(bool)].groupby("batch_size")["steps"].median()
            if len(least) > 2 and least.is_monotonic_increasing and not (least % 1).any() and _EPOCHS not in notes:
                notes.append(_EPOCHS)
            readings.append(
                Reading(target=target, studies=_studies(name, about, part, target), not_reached=_NOT_REACHED)
            )
        curves.append((about, readings))
        names += [(members["group"].iloc[0], members["optimizer"].iloc[0])] * len(readings)
    return TableFit(
        config=config,
        name=name,
        answers=tuple(answer for about, readings in curves for answer in estimates(about, readings, config)),
        names=tuple(names),
        unit=whole if unit else "examples (as in the table)",
        notes=tuple(notes),
    )


def _group(name: str, rows: pd.DataFrame, unit: str) -> Group:
    group, optimizer, tokens = rows.iloc[0][["group", "optimizer", "tokens_per_example"]]
    other = rows[rows["tokens_per_example"].fillna(0) != (tokens or 0)]
    if len(other):
        raise DataError(
            f"{name}, {other['place'].iloc[0]}: tokens_per_example differs from {rows['place'].iloc[0]}; "
            "what a batch size counts must be the same along a curve"
        )
    return Group(
        sweep=Path(name).stem,
        folder=Path(name),
        workload=group if group and optimizer else "",
        optimizer=optimizer or group or "all rows",
        choice=Choice(name=optimizer or group or "all rows"),
        target=_target(math.nan),
        stops_at_target=False,
        example_unit=unit,
        tokens_per_example=tokens,
    )


def _target(value: float) -> TableTarget:
    known = not math.isnan(value)
    return TableTarget(metric="target", value=float(value) if known else 0.0, known=known)


def _studies(name: str, about: Group, rows: pd.DataFrame, target: Target) -> list[Study]:
    """Return the studies of one curve in order of increasing batch size.

    If the table has one learning rate per batch size, it is the best one, and what else was tried is unknown: a
    learning rate of NaN then keeps it from being taken for the edge of a grid.
    """
    _check_repeats(name, rows)
    _check_budget(name, rows)
    parts = rows.groupby("batch_size")
    if len(parts) == 1:
        raise DataError(
            f"{name}, {rows['place'].iloc[0]}: {_curve(rows.iloc[0])} has one batch size, "
            f"{rows['batch_size'].iloc[0]:g}; a fit needs two, and an interval three: add rows"
        )
    grid_known = (parts["lr"].nunique(dropna=False) > 1).any()
    studies, reached = [], ~rows["censored"].astype(bool)
    grain = _grain(rows.loc[reached, "steps"].to_numpy())
    for size, part in parts:
        trials = pd.DataFrame(
            {
                "lr": part["lr"] if grid_known else math.nan,
                "seed": pd.factorize(part["seed"], use_na_sentinel=False)[0],
                "status": np.where(part["censored"], TrialStatus.BUDGET_EXHAUSTED, TrialStatus.REACHED),
                "final_step": part["steps"],
            }
        )
        number: Any = int(size) if size.is_integer() else size
        studies.append(
            one_study(about, number, trials, target, part["steps"].where(reached), grain, interpolated=False)
        )
    return studies


def _grain(steps: Array) -> float:
    """Return the number that all steps are multiples of, as when read at every 500th step; 0 if that may be chance."""
    different = np.unique(steps)
    if len(different) < _FEWEST_OF_A_GRAIN or (different % 1).any():
        return 0.0
    return float(np.gcd.reduce(different.astype(np.int64)))


def _check_repeats(name: str, rows: pd.DataFrame) -> None:
    trial = ["batch_size", "lr", "seed"]
    for _, same in rows[rows.duplicated(trial, keep=False)].groupby(trial, sort=False, dropna=False):
        first, second = same.iloc[0], same.iloc[1]
        where, which = f"{name}, {second['place']}", f"batch size {second['batch_size']:g}"
        which = f"{curve} at {which}" if (curve := _curve(second)) != TABLE else which
        there = f"already exists, in {first['place']}"
        if second["seed"] is not None:
            remedy = "remove one of them, or name the column in which they differ, as in --column lr=learning_rate"
            raise DataError(f"{where}: {which}, seed {second['seed']} {there}; {remedy}")
        if second.drop("place").equals(first.drop("place")):
            raise DataError(f"{where}: repeats {first['place']}; remove it, or add a column seed if they are two runs")
        raise DataError(
            f"{where}: {which} {there}; say which column tells the runs apart, as in --column seed=my_seed and "
            "--column lr=my_rate, or add a column seed"
        )


def _check_budget(name: str, rows: pd.DataFrame) -> None:
    """Refuse step counts that look like a budget recorded as if the target had been reached."""
    most = rows[rows["steps"] == rows["steps"].max()]
    sizes = most["batch_size"].unique()
    few = len(most) < _FEWEST_AT_A_BUDGET or len(sizes) < 2 or most["steps"].iloc[0] < _LEAST_BUDGET
    if rows["told"].any() or few or len(most) == len(rows):
        return
    where = ", ".join(f"{size:g}" for size in sorted(sizes))
    raise DataError(
        f"{name}, {most['place'].iloc[0]}: steps is {most['steps'].iloc[0]:g} in {len(most)} rows, at batch size "
        f"{where}, and larger nowhere: if that was the budget, add a column censored with true in these rows; if all "
        "of them reached the target, with false"
    )


def _curve(row: pd.Series) -> str:
    """Name the curve that a row belongs to."""
    given = [f"{kind} {row[kind]!r}" for kind in ("group", "optimizer") if row[kind]]
    given += [] if math.isnan(row["target"]) else [f"target {row['target']:g}"]
    return ", ".join(given) or TABLE


def read(
    source: str | os.PathLike[str] | pd.DataFrame, columns: Mapping[str, str] | None = None, unit: str = "tokens"
) -> tuple[str, pd.DataFrame, list[str]]:
    """Read and check a table; the arguments are as for :func:`analysis.questions.fit.table_fit.fit_table`.

    Returns:
        The name of the table for messages, its rows, and the columns that are not used. The rows have the columns
        :data:`REQUIRED` and :data:`OPTIONAL`, with ``None`` if the table has no such column, as well as ``place``,
        where a row stands, such as ``line 7``, and ``told``, whether a cell says if it is ``censored``. ``steps`` are
        the steps to the target or, if ``censored``, the number of steps run without reaching it (NaN if that is
        unknown). ``optimizer``, ``group`` and ``seed`` are texts as written.

    Raises:
        DataError: if a row cannot be used; the message names table, row and remedy.
        ConfigError: if ``columns`` names a title that does not exist, or an unknown column.
    """
    given = columns or {}
    whole = read_table(source)
    table = with_products(whole, given.values())
    titles = table.titled(_CELLS, given)
    for name in REQUIRED:
        table.need(titles[name], _remedy(name, table.columns))
    doubts = [doubt(name, title, unit) for name, title in given.items()]
    if given.get("batch_size") != "batch_size":
        doubts.append(of_part(titles["batch_size"], table.columns))
    if words := next(filter(None, doubts), ""):
        raise DataError(f"{table.name}: {words}" + " with --unit tokens" * words.endswith("say so"))
    titles = {name: title for name, title in titles.items() if title in table.columns}
    used = {name for title in titles.values() for name, _ in [(title, 1), *factors(title, whole.columns)]}
    unused = [title for title in table.columns if title and title not in used]
    for title in unused:
        if title.lower() in _ENDS and len({str(cell) for cell in table.columns[title]}) > 1:
            raise DataError(
                f"{table.name}: column {shown(title)} distinguishes rows, but is not used: write true in a "
                "column censored where steps is what was run without reaching the target, leave steps empty where a "
                f"run diverged, and remove {shown(title)}"
            )
    rows = pd.DataFrame([_row(table, row, titles) for row in range(len(table.places))], dtype=object)
    return table.name, rows.astype(dict.fromkeys(("batch_size", "steps", "lr", "target"), float)), unused


def _remedy(name: str, titles: Mapping[str, Any]) -> str:
    meaning = "examples per optimizer step" if name == "batch_size" else "optimizer steps to the target"
    free = [title for title in titles if title and title not in _CELLS]
    lower = {title.lower().replace(" ", "_"): title for title in free}
    lower = {title: own for title, own in lower.items() if not _OTHERWISE.search(title)}
    near = [lower[word] for word in (*_UNLIKE[name], *get_close_matches(name, lower, n=1, cutoff=0.6)) if word in lower]
    trained = [lower[word] for word in _TRAINED_ON if word in lower and name == "steps"]
    if trained and not near:
        said = f"{shown(trained[0])} is what was trained on until the target"
        return f"if {said}, pass --column 'steps={trained[0]}/batch_size'"
    if name == "batch_size" and (whole := whole_batch(titles)):
        return f"if {meaning} are the product, pass --column 'batch_size={whole}'"
    if not near:
        return f"pass --column {name}=NAME for the column that holds {meaning}"
    unit = ", and --unit for what is counted" if name == "batch_size" else ""
    given = shlex.quote(f"{name}={shown(near[0], quote=False)}")
    return f"if {shown(near[0])} holds {meaning}, pass --column {given}{unit}"


def _row(table: Sheet, index: int, titles: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"place": table.places[index]}
    for name, (parse, remedy) in _CELLS.items():
        row[name] = None
        if name in titles and not cells.empty(table.columns[titles[name]][index]):
            row[name] = table.cell(index, titles[name], parse)
        elif name in titles and remedy:
            raise table.error(index, titles[name], f"it is empty; {remedy}")
        elif name in titles and parse is _text:
            row[name] = ""
    censored = row["censored"] is not None
    return row | {"told": censored, "censored": bool(row["censored"]) or row["steps"] is None}


def _measured(cell: Any, hint: str = "correct or remove the row") -> float:
    value = cells.positive(cell, hint)
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{value:g} is out of range ({SMALLEST:g} to {LARGEST:g}); correct it")
    return value


def _target_cell(cell: Any) -> float:
    value = cells.number(cell)
    if not math.isfinite(value):
        raise ValueError(f"{shown(cell)} is not a finite number; correct or remove the row")
    return value


def _text(cell: Any) -> str:
    return " ".join(str(cell).split())


def _seed(cell: Any) -> str:
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


# Parser for the cells of each column, and the advice for an empty cell where none is allowed
_CELLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch_size": (_measured, "every row needs a batch size"),
    "steps": (lambda cell: _measured(cell, "leave the cell empty where the target was not reached"), ""),
    "optimizer": (_text, ""),
    "group": (_text, ""),
    "seed": (_seed, "number the runs, or remove the column"),
    "lr": (_measured, ""),
    "censored": (cells.flag, ""),
    "target": (_target_cell, "give the value that the steps lead to, or remove the column"),
    "tokens_per_example": (cells.whole, ""),
}

REQUIRED, OPTIONAL = tuple(_CELLS)[:2], tuple(_CELLS)[2:]
