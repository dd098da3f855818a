"""What ``cbs schedule losses`` writes and prints."""

from __future__ import annotations

from analysis.phrases import percent, share
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, files, quantity
from analysis.questions.schedule_losses.answer import ScheduleLoss, ScheduleLosses


@presentation.register
def _(found: ScheduleLosses) -> Presentation:
    tables = {"schedule_losses": losses(found)}
    edges = [f"{each.optimizer}, {each.schedule}: the best learning rate is at the edge of the grid, so a better one may "
             "lie beyond" for each in found.entries if each.at_grid_edge]  # fmt: skip
    return Presentation(
        shown=[tables["schedule_losses"], *dict.fromkeys(edges), *found.notes], tables=tables,
        json="schedule_losses.json",
    )  # fmt: skip


def losses(found: ScheduleLosses) -> Table:
    """One row per optimizer, schedule and first batch size."""

    def saved(row: ScheduleLoss) -> float:
        return row.steps_saved

    columns = (
        *files("sweep"),
        Column("optimizer", heading="optimizer", name=True),
        Column("schedule", heading="schedule", name=True),
        Column("batch_size", heading="first B", name=True),
        quantity("metric", "metric"),
        quantity("difference", "less that of the constant one"),
        Column("probability_smaller", heading="probability below 0", text=share),
        Column("steps", heading="steps"),
        Column("steps_saved", saved, "steps saved", text=share),
        *files("against", "examples", "best_lr", "at_grid_edge", "seeds"),
    )
    title = f"Final metric at equal examples [{percent(found.config.confidence)} % interval]"
    return Table(columns=columns, rows=found.entries, title=title)
