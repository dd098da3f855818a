"""Phases from a table of critical batch sizes along a run, as obtained from branched training."""

from __future__ import annotations

import os

from analysis.arrays import OPEN, Interval
from analysis.config import AnalysisConfig
from analysis.phrases import number
from analysis.read.cells import empty, positive, whole
from analysis.read.table import read_table
from cbs.errors import DataError
from extensions.schedules.plan.source import PhaseSource, Stretch, of_noise_scales

_COLUMNS = ("examples", "critical_batch_size", "low", "high", "batch_size")


def of_curve(
    path: str | os.PathLike[str],
    config: AnalysisConfig,
    *,
    end: int | None,
    tokens_per_example: int | None,
    optimizer: str | None,
) -> PhaseSource:
    """Return the phases between the rows of a table.

    A row holds until the next one, the last one until ``end`` examples. Columns: ``examples`` seen, from 0 or later and
    increasing; the local ``critical_batch_size`` there, in examples; its interval ``low`` and ``high`` at the
    confidence of ``config``, without which there is no band; ``batch_size`` of the run along which it was measured. A
    ``DataError`` names the line and the remedy.
    """
    table = read_table(path)
    table.known(_COLUMNS)
    for name in ("examples", "critical_batch_size", "batch_size"):
        table.need(name, "a plan needs it")
    rows = range(len(table.places))
    begins = [table.cell(row, "examples", lambda cell: whole(cell, 0)) for row in rows]
    for row in rows[1:]:
        if begins[row] <= begins[row - 1]:
            raise table.error(row, "examples", "it does not come after the row before it")
    if end is None or end <= begins[-1]:
        raise DataError(
            f"{table.name} ends at {begins[-1]:,} examples: give a --budget beyond it, where its last row ends"
        )
    stretches: list[Stretch] = []
    for row, last in zip(rows, [*begins[1:], end], strict=True):
        value, batch = table.cell(row, "critical_batch_size", positive), table.cell(row, "batch_size", positive)
        ends: Interval = tuple(  # type: ignore[assignment]
            None if name not in table.columns or empty(table.columns[name][row]) else table.cell(row, name, positive)
            for name in ("low", "high")
        )
        if None not in ends and not ends[0] <= value <= ends[1]:  # type: ignore[operator]
            raise table.error(row, "critical_batch_size", "it lies outside its own interval")
        seen = last - (begins[row] if row else 0)
        stretches.append((f"{number(last)} examples of the table", value, ends, seen / batch, seen))
    notes: tuple[str, ...] = ()
    if any(None in ends for _, _, ends, *_ in stretches):
        notes = ("not every row has an interval: the values decide alone, and the plan has no intervals",)
        stretches = [(where, value, OPEN, steps, seen) for where, value, _, steps, seen in stretches]
    return of_noise_scales(
        stretches,
        config,
        config.confidence,
        what=f"critical batch sizes of {table.name}",
        optimizer=optimizer or "",
        tokens_per_example=tokens_per_example,
        notes=notes,
    )
