"""Presentation of ``cbs theory temperature``: what it writes and prints."""

from __future__ import annotations

from analysis.formatting import percent, share_in_percent
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, files, quantity
from extensions.theory.temperature import Temperature


@presentation.register
def _(found: Temperature) -> Presentation:
    said = f"[{percent(found.config.confidence)} % interval]"
    whose = tuple(Column(name, heading=name, name=True) for name in ("workload", "optimizer"))
    laws = Table(
        columns=(
            *files("sweep"),
            *whose,
            quantity("lr", "power of the learning rate"),
            quantity("batch_size", "power of the batch size"),
            quantity("temperature", "power of LR / B alone"),
            Column("residual_rms", heading="rms residual", text=share_in_percent),
            Column("points", heading="points"),
            Column("remark"),
        ),
        rows=found.laws,
        title=f"B_simple as a power of learning rate and batch size {said}",
    )
    points = Table(
        columns=(
            *files("sweep"),
            *whose,
            Column("lr", heading="learning rate", name=True),
            Column("batch_size", heading="batch size", name=True),
            Column("simple_noise_scale", "value", "B_simple", interval="interval"),
            Column("seeds", heading="seeds"),
            *files("note"),
        ),
        rows=found.points,
        title=f"Noise scale in examples, second half of every run {said}",
    )
    tables = {"temperature_laws": laws, "temperature_points": points}
    return Presentation(shown=[points, laws, *found.notes], tables=tables, json="temperature.json")
