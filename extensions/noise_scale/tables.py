"""Presentation of ``cbs noise-scale``: what it writes and prints; layers only if everything is requested."""

import re
from dataclasses import dataclass, replace
from typing import Any

from analysis.formatting import number, percent, with_interval
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, files, pivot, quantity
from cbs.registry.choices import Choice
from extensions.noise_scale.one_step import OneStepTest

CORRECTED = "_corrected"  # Suffix of the name of a geometry whose noise scale is corrected for the batch size


@dataclass(frozen=True)
class MeasuredRun:
    """A measured run; ``values`` is the result of :meth:`extensions.noise_scale.phases.NoiseScaleRun.to_json`."""

    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return self.values


@presentation.register
def _(measured_run: MeasuredRun) -> Presentation:
    run = measured_run.values
    unit, phases = run["example_unit"], run["phases"]

    confidence = next(iter(phases[0]["noise_scales"].values()))["confidence"]
    said, config = f"in {unit}s [{percent(confidence)} % interval]", run["config"]
    title = (
        f"Noise scale {said} by {unit}s seen, {Choice(**config['optimizer'])} lr {config['lr']:g}, "
        f"batch size {config['batch_size']}, source {run['source']}"
    )
    table = scales(run)
    by_phase = pivot(table.rows, Column("", "label", "geometry"), Column("last_examples", "value", interval=_interval))
    loss = ", ".join(f"{number(phase['train_loss'], 4)} up to {phase['last_examples']:,}" for phase in phases)
    tokens = [f"a {unit} is {run['tokens_per_example']:,} tokens"] if run["tokens_per_example"] else []
    layers = [({"layer": name}, entry) for name, entry in phases[-1]["layers"].items()]
    columns = (
        Column("layer", heading="layer", name=True),
        Column("noise_scale", "value", "noise scale", _interval),
        Column("signal", heading="signal"),
        Column("noise", heading="noise"),
    )
    return Presentation(
        shown=[
            replace(
                by_phase,
                title=title,
                lines=[f"mean training loss: {loss}", *tokens, *_notes(run)],
                wide_lines=_unseen(phases[-1]["noise_scales"].get("l2", {}), config["batch_size"]),
            ),
        ],
        wide=[Table(columns=columns, rows=layers, title=f"By layer, last phase, {said}")],
        tables={"noise_scale": table},
        json="noise_scale.json",
        drawn_in="",
    )


def _interval(*row: Any) -> tuple[float | None, float | None]:
    return row[-1]["low"], row[-1]["high"]


def scales(run: dict[str, Any]) -> Table:
    """Return a table with one row per phase and geometry of :meth:`.phases.NoiseScaleRun.to_json`.

    ``examples`` is at the middle of the phase.
    """
    rows = []
    # the geometry that matches the optimizer, corrected for the batch size if there is such a version
    corrected = f"{run['matched']}{CORRECTED}"
    matched = corrected if corrected in run["phases"][0]["noise_scales"] else run["matched"]
    for index, phase in enumerate(run["phases"]):
        first, last = phase["first_examples"], phase["last_examples"]
        for geometry, entry in phase["noise_scales"].items():
            own = geometry == matched
            about = ", ".join(["plain"] * (geometry == "l2") + ["matched"] * own)
            more = {
                "phase": index + 1,
                "examples": (first + last) / 2,
                "geometry": geometry,
                "symbol": run["symbols"][geometry],
                "label": geometry.replace("_", " ") + (f" ({about})" if about else ""),
                "matched": own,
                "example_unit": run["example_unit"],
            }
            rows.append((more, phase, entry))
    columns = (
        *files("phase", "first_examples", "last_examples", "examples", "train_loss", "geometry", "symbol", "matched"),
        Column("noise_scale", "value", interval=_interval, ends=("low", "high")),
        *files("signal", "noise", "note", "example_unit"),
    )
    return Table(columns=columns, rows=rows)


def _unseen(simple: dict[str, Any], batch_size: int) -> list[str]:
    """Return what the noise scale would be if examples of a batch shared as much as goes unnoticed.

    Where a share f of the signal is the noise of a batch of B examples, it is (b + f B) / (1 - f) in place of b.
    """
    share, value = simple.get("unseen"), simple.get("value")
    if share is None:
        return []
    may = f"examples of a batch may share {'up to ' * (share < 1)}{percent(share)} % of the signal without a note"
    then = value and share < 1 and f": the noise scale would be {number((value + share * batch_size) / (1 - share))}"
    return [f"{may}, if their inputs do not show it{then or ''}"]


def _notes(run: dict[str, Any]) -> list[str]:
    """Return the notes on the estimates, every note once per phase."""
    notes: dict[tuple[int, str], list[str]] = {}
    for phase in run["phases"]:
        for geometry, entry in phase["noise_scales"].items():
            if entry["note"]:
                note = re.sub("only [0-9]+ effectively independent steps", "few independent steps", entry["note"])
                notes.setdefault((phase["last_examples"], note), []).append(geometry.replace("_", " "))
    unit = run["example_unit"]
    return [f"up to {last:,} {unit}s: {note} ({', '.join(names)})" for (last, note), names in notes.items()]


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
