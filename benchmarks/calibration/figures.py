"""Two figures: the curves that are true and the steps that were measured, and every interval over the truth."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.present import style
from benchmarks.calibration.page import Found
from benchmarks.calibration.summary import holds, points

BLUE, ORANGE = style.COLOURS[:2]


def draw(found: dict[str, Found], folder: Path) -> list[Path]:
    """Write ``calibration_curves.png`` and ``calibration_intervals.png``."""
    run = {name: of for name, of in found.items() if of.fine}
    paths = []
    for name, panel in (("curves", curves), ("intervals", intervals)):
        with style.style():
            figure, axes = style.grid(len(run))
            for place, (one, (title, of)) in enumerate(zip(axes, run.items(), strict=True)):
                panel(one, of, first=place == 0)
                one.set_title(title)
            paths.append(folder / f"calibration_{name}.png")
            style.save_as(figure, paths[-1])
    return paths


def curves(axes: Axes, of: Found, *, first: bool) -> None:
    """Steps over batch sizes: lines are true, dots are means over replicates of what was measured there."""
    sizes = [best.batch_size for best in of.truth.swept]
    axes.plot(sizes, [best.expected_steps for best in of.truth.swept], "--", color=style.GREY, label="expected loss")
    axes.plot(sizes, [best.steps for best in of.truth.swept], "-", color=BLUE, label="trials, simulated")
    rows = points(of.fine, of.truth)
    trained = [row["truth"] * math.exp(row["trained"][0]) for row in rows]
    axes.plot(sizes, trained, "o", color=ORANGE, label="trials, trained")
    critical = of.truth.estimands("trials", "exact").critical
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    steps = np.exp(np.interp(math.log(critical), np.log(sizes), [math.log(best.steps) for best in of.truth.swept]))
    bottom = axes.get_ylim()[0]
    axes.plot([critical] * 2, [bottom, steps], ":", color=BLUE, linewidth=0.9)
    axes.set_ylim(bottom=bottom)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axes.get_ylim()
    ticks = [tick for tick in (10, 20, 50, 100, 200, 500, 1000) if low < tick < high]
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("batch size (examples)")
    if first:
        axes.set_ylabel("steps to loss < 0.1")
        axes.legend(loc="upper right")


def intervals(axes: Axes, of: Found, *, first: bool) -> None:
    """Of the critical batch size over its exact truth, sorted; those that miss it are dashed and orange."""
    truth = of.truth.estimands("trials", "exact").critical
    fitted = of.truth.estimands("trials", "fitted").critical
    entries = sorted(
        (record["estimates"]["critical"] for record in of.fine), key=lambda entry: entry["value"] or math.inf
    )
    closed = [end / truth for entry in entries for end in entry["interval"] if end]
    limits = min(closed) / 1.1, max(closed) * 1.1
    for place, entry in enumerate(entries):
        low, high = entry["interval"]
        inside = holds(entry["interval"], truth)
        ends = [(low or 0.0) / truth or limits[0], (high or np.inf) / truth if high else limits[1]]
        axes.plot(ends, [place] * 2, color=BLUE if inside else ORANGE, linewidth=0.8, linestyle="-" if inside else "--")
        if entry["value"]:
            axes.plot(entry["value"] / truth, place, "o", color=BLUE if inside else ORANGE, markersize=1.8)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.axvline(fitted / truth, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    ticks = [tick for tick in (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0) if limits[0] < tick < limits[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([])
    axes.set_xlabel("$B_{crit}$ / exact truth")
    if first:
        axes.set_ylabel("replicates")
