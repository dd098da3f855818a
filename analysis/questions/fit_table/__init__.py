"""Critical batch sizes from a plain table of batch sizes and steps to target, such as one from a paper.

The rows become the studies that a sweep would have left, so fit, interval, definitions, verdict and figures are those
of ``cbs analyze``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.definitions import chosen
from analysis.estimate.estimates import Reading, known_value
from analysis.estimate.result import Answer, answered
from analysis.estimate.studies import Study
from analysis.questions.analyze import fit_to_json
from analysis.questions.fit_table.rows import Row, read
from analysis.read.results import Group
from cbs.errors import ConfigError, DataError
from cbs.record import TrialStatus
from cbs.target import Target

UNNAMED = "the target"
"""A target of which a table does not tell the value."""

_NOT_REACHED = "every row is censored or empty: read the steps at an easier target, or run longer"


@dataclass(frozen=True, kw_only=True)
class TableTarget(Target):
    """What the steps of a table lead to; a table need not say."""

    known: bool = True

    def __str__(self) -> str:
        return f"target {self.value:g}" if self.known else UNNAMED


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """What :func:`fit_table` found.

    Attributes:
        name: of the table.
        answers: one per group, optimizer and target.
        names: of every answer, the group and the optimizer as the table has them; ``None`` without such a column.
        unit: what the batch size counts, in words.
        notes: what was left out, one line each.
    """

    name: str
    answers: tuple[Answer, ...]
    names: tuple[tuple[str | None, str | None], ...]
    unit: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values that :func:`json.dumps` writes with ``allow_nan=False``."""
        fits = [self._fit(answer, *names) for answer, names in zip(self.answers, self.names, strict=True)]
        return {"table": self.name, "unit": self.unit, "fits": fits, "notes": list(self.notes)}

    def _fit(self, answer: Answer, group: str | None, optimizer: str | None) -> dict[str, Any]:
        whole = fit_to_json(answer, self.answers)
        left_out = ("sweep", "workload", "optimizer_options", "metric_unit", "example_unit", "matched_geometry")
        rest = {key: value for key, value in whole.items() if key not in left_out and "noise_scale" not in key}
        points = [{key: value for key, value in point.items() if "noise_scale" not in key} for point in rest["points"]]
        return (
            {"group": group}
            | rest
            | {
                "optimizer": optimizer,
                "target": known_value(answer.target),
                "confidence": answer.confidence,
                "options": answer.critical.options,
                "points": points,
            }
        )


def fit_table(
    source: str | os.PathLike[str] | pd.DataFrame,
    config: AnalysisConfig | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
) -> TableFit:
    """Fit every curve of a table: one per group, optimizer and target.

    Args:
        source: a CSV, TSV or Parquet file, ``-`` for standard input, or a table in memory, with the columns
            ``batch_size`` and ``steps`` and, optionally, ``optimizer``, ``group``, ``seed``, ``lr``, ``censored``,
            ``target`` and ``tokens_per_example``.
        config: how the numbers are made.
        columns: our name of a column -> what it is called in the table, where that differs.
        unit: what ``batch_size`` counts, in the plural: ``sequences``.

    Raises:
        DataError: if the table cannot be used; the line names table, row and remedy.
        ConfigError: if ``columns`` or ``unit`` is not one.
    """
    config = config or AnalysisConfig()
    if unit is not None and not (unit.strip() and unit.isprintable()):
        raise ConfigError(f"--unit must be a word such as sequences, got {unit!r}")
    name, rows, unused = read(source, columns)
    notes = [f"columns that are not used: {', '.join(unused)}"] if unused else []
    if unit is None:
        notes.append("batch sizes are in examples, as in the table; say what they are with --unit sequences")
    whole = unit.strip() if unit else "examples"
    one = whole[:-1] if len(whole) > 1 and whole.endswith("s") else whole
    chosen(config)
    names, curves = [], []
    for who, members in _parts(rows, lambda row: (row.group, row.optimizer)):
        about = _group(name, members, one)
        parts = sorted(_parts(members, lambda row: row.target), key=lambda part: _first(part[0]))
        readings = [
            Reading(target=_target(target), studies=_studies(name, rows), not_reached=_NOT_REACHED)
            for target, rows in parts
        ]
        curves.append((about, readings))
        names += [who] * len(parts)
    return TableFit(
        name=name,
        answers=tuple(answer for found in answered(curves, config) for answer in found),
        names=tuple(names),
        unit=whole if unit else "examples (as in the table)",
        notes=tuple(notes),
    )


def _first(value: float | None) -> float:
    """To sort by; what is not known comes first."""
    return -math.inf if value is None else value


def _parts(rows: Iterable[Row], key: Any) -> list[tuple[Any, list[Row]]]:
    """Rows by key, in the order in which the keys come up."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.items())


def _group(name: str, rows: Sequence[Row], unit: str) -> Group:
    group, optimizer = rows[0].group, rows[0].optimizer
    tokens = _parts(rows, lambda row: row.tokens_per_example)
    if len(tokens) > 1:
        raise DataError(
            f"{name}, {tokens[1][1][0].place}: tokens_per_example differs from {tokens[0][1][0].place}; "
            "what a batch size counts must be the same along a curve"
        )
    return Group(
        sweep=Path(name).stem,
        folder=Path(name),
        workload=group if group and optimizer else "",
        optimizer=optimizer or group or "all rows",
        optimizer_options={},
        workload_options={},
        parameters=None,
        target=_target(None),
        stops_at_target=False,
        prune_factor=None,
        example_unit=unit,
        tokens_per_example=tokens[0][0],
        metric_unit="",
    )


def _target(value: float | None) -> TableTarget:
    return TableTarget(metric="target", value=0.0 if value is None else value, known=value is not None)


def _studies(name: str, rows: Sequence[Row]) -> list[Study]:
    """The studies of one curve, by increasing batch size.

    Raises:
        DataError: if a trial is there twice, or there is one batch size only.
    """
    _check_repeats(name, rows)
    sizes = sorted({row.batch_size for row in rows})
    if len(sizes) == 1:
        raise DataError(
            f"{name}, {rows[0].place}: {_curve(rows[0])} has one batch size, {sizes[0]:g}; a fit needs two, and an "
            "interval three: add rows"
        )
    lrs = {size: {row.lr for row in rows if row.batch_size == size} for size in sizes}
    grid_known = any(len(found) > 1 for found in lrs.values())
    return [_study(size, [row for row in rows if row.batch_size == size], grid_known) for size in sizes]


def _check_repeats(name: str, rows: Sequence[Row]) -> None:
    for _, same in _parts(rows, lambda row: (row.batch_size, row.lr, row.seed)):
        if len(same) == 1:
            continue
        first, second = same[:2]
        where, which = f"{name}, {second.place}", f"{_curve(second)} at batch size {second.batch_size:g}"
        if second.seed is not None:
            raise DataError(
                f"{where}: {which}, seed {second.seed} is there already, in {first.place}; remove one of them"
            )
        if replace(second, place=first.place) == first:
            raise DataError(f"{where}: repeats {first.place}; remove it, or add a column seed if they are two runs")
        raise DataError(
            f"{where}: {which} is there already, in {first.place}; add a column seed to tell the runs apart"
        )


def _curve(row: Row) -> str:
    """The curve a row belongs to, in words."""
    names = [("group", row.group), ("optimizer", row.optimizer)]
    given = [f"{kind} {value!r}" for kind, value in names if value]
    given += [f"target {row.target:g}"] if row.target is not None else []
    return ", ".join(given) or "the table"


def _study(size: float, rows: Sequence[Row], grid_known: bool) -> Study:
    """All rows of one curve at one batch size.

    Where the table has one learning rate per batch size it is the best one, and what was tried beside it is not known:
    a learning rate of NaN keeps it from being taken for the edge of a grid.
    """
    lrs: list[float | None] = sorted({row.lr for row in rows}, key=_first)
    seeds = list(dict.fromkeys(row.seed for row in rows))
    shape = (len(lrs), len(seeds))
    steps, bound, status = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, "", dtype=object)
    for row in rows:
        at = lrs.index(row.lr), seeds.index(row.seed)
        status[at] = str(TrialStatus.BUDGET_EXHAUSTED if row.censored else TrialStatus.REACHED)
        (bound if row.censored else steps)[at] = np.nan if row.steps is None else row.steps
    known = [lr if lr is not None and grid_known else math.nan for lr in lrs]
    number: Any = int(size) if size.is_integer() else size
    return Study(number, np.array(known), np.arange(len(seeds)), steps, status, bound, np.full(shape, -1))
