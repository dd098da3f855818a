"""Presentation of ``cbs schedule plan`` for a table of stages."""

from __future__ import annotations

from analysis.extensions.schedule_plan.stages import Stages
from analysis.phrases import number
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table


@presentation.register
def _(stages: Stages) -> Presentation:
    columns = (
        Column("start", heading=f"from {stages.unit}", text="{:,}".format),
        Column("batch_size", heading="batch size"),
        Column("steps", heading="steps"),
        Column("share", heading="share of the examples"),
    )
    length = "" if stages.tokens_per_example is None else f", of {stages.tokens_per_example:,} tokens each"
    lines = [
        f"{stages.steps:,} steps for {stages.budget:,} {stages.unit}; batch sizes in examples{length}",
        *(f"constant batch size {size:,}: {_saved(saved)}" for size, saved in stages.constant.items()),
    ]
    table = Table(columns=columns, rows=stages.stages, lines=lines)
    return Presentation(shown=[table], tables={"stages": table}, json="stages.json")


def _saved(share: float) -> str:
    if abs(share) < 5e-4:
        return "as many steps"
    return f"saves {number(100 * share)} % of the steps" if share > 0 else f"takes {number(-100 * share)} % more steps"
