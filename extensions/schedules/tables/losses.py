"""Presentation of ``cbs schedule judge`` where trials end at a budget: what it writes and prints."""

from __future__ import annotations

from analysis.formatting import DASH, percent, share
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, files, quantity
from extensions.schedules.losses import ScheduleLosses


@presentation.register
def _(found: ScheduleLosses) -> Presentation:
    tables = {"schedule_losses": losses(found)}
    edges = [
        f"{each.optimizer}, {each.schedule}: best learning rate at the edge of the grid, one beyond may be better"
        for each in found.entries
        if each.at_grid_edge
    ]
    return Presentation(
        shown=[tables["schedule_losses"], *dict.fromkeys(edges), *found.notes], tables=tables,
        json="schedule_losses.json",
    )  # fmt: skip


def percent_or_dash(part: float | None) -> str:
    """Format a fraction that may be negative, or a dash."""
    return DASH if part is None else f"{100 * part:.3g} %"


def losses(found: ScheduleLosses) -> Table:
    """Return a table with one row per optimizer, schedule and first batch size."""

    rows = [(entry, difference) for entry in found.entries for difference in entry.against or (None,)]

    columns = (
        *files("sweep"),
        Column("optimizer", heading="optimizer", name=True),
        Column("schedule", heading="schedule", name=True),
        Column("batch_size", heading="first B", name=True),
        quantity("metric", "metric", signed=True),
        Column("constant_batch_size", lambda _, other: other and other.batch_size, "against constant B"),
        Column("difference", "value", "difference", "interval", signed=True),
        Column("probability_smaller", heading="probability below 0", text=share),
        Column("steps", heading="steps"),
        Column("steps_saved", heading="steps saved", text=percent_or_dash),
        *files("examples", "best_lr", "at_grid_edge", "seeds"),
    )  # fmt: skip
    title = f"Final metric at equal examples [{percent(found.config.confidence)} % interval]"
    return Table(columns=columns, rows=rows, title=title)
