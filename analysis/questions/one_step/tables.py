"""Presentation of ``cbs noise-scale --one-step``: what it writes and prints."""

from __future__ import annotations

from analysis.formatting import number, percent, with_interval
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, quantity
from analysis.questions.one_step.answer import OneStepTest


@presentation.register
def _(found: OneStepTest) -> Presentation:
    unit = found.about["example_unit"]
    columns = (
        Column("batch_size", heading="B", name=True),
        quantity("length", "best step"),
        quantity("saved", "saves"),
        Column("at_edge"),
    )
    scales = {
        "by what steps save": found.noise_scale,
        "by curvature along gradients, tr(H S)/(g'Hg)": found.hessian_noise_scale,
        "simple, tr(S)/|G|^2": found.simple_noise_scale,
    }
    lines = [f"noise scale {name}: {with_interval(each.value, each.interval)} {unit}s" for name, each in scales.items()]
    lines.append(f"the best step with the whole gradient saves {with_interval(found.most.value, found.most.interval)}")
    said = f"{found.about['optimizer']} after {number(found.about['steps'])} steps of {found.about['workload']}"
    title = f"What one step along the gradient saves, {said} [{percent(found.confidence)} % interval]"
    table = Table(columns=columns, rows=found.points, title=title, lines=[*lines, *found.notes])
    return Presentation(shown=[table], tables={"one_step": table}, json="one_step.json")
