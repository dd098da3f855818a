"""What ``cbs noise-scale`` shows: the noise scale along a run as a table and as a figure."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.tables import number, with_interval
from cbs.errors import ResultsError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SYMBOLS = {
    "l2": r"$B_{\mathrm{simple}}$",
    "l1": r"$B_{\ell_1}$",
    "nuclear": r"$B_{S_1}$",
    "preconditioned": r"$B_{\mathrm{pre}}$",
    "hessian": r"$B_{\mathrm{noise}}$",
    "l1_corrected": r"$B_{\ell_1}^{\mathrm{corr}}$",
    "nuclear_corrected": r"$B_{S_1}^{\mathrm{corr}}$",
}


def compute(run: dict[str, Any]) -> pd.DataFrame:
    """One row per phase and geometry.

    ``examples`` is the middle of the phase (its end for the Hessian-weighted scale, which is taken there),
    ``noise_scale`` NaN where undefined, ``low`` and ``high`` NaN where the interval is open.

    Args:
        run: :meth:`cbs.noise_scale.run.NoiseScaleRun.to_json`.
    """
    rows = []
    matched = _matched(run)
    for place, phase in enumerate(run["phases"]):
        for geometry, estimate in phase["noise_scales"].items():
            first, last = phase["first_examples"], phase["last_examples"]
            rows.append(
                {
                    "phase": place + 1,
                    "first_examples": first,
                    "last_examples": last,
                    "examples": last if geometry == "hessian" else (first + last) / 2,
                    "train_loss": phase["train_loss"],
                    "geometry": geometry,
                    "matched": geometry == matched,
                    "noise_scale": estimate["value"],
                    "low": estimate["low"],
                    "high": estimate["high"],
                    "signal": estimate["signal"],
                    "noise": estimate["noise"],
                    "note": estimate["note"],
                    "example_unit": run["example_unit"],
                }
            )
    numbers = ["noise_scale", "low", "high", "signal", "noise"]
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Noise scales against examples seen, corrected ones in place of what they correct, both on log axes, with
    intervals as bars: an open end runs off the axes, and a hollow marker has no interval."""
    better = table["geometry"].isin([name.removesuffix("_corrected") for name in set(table["geometry"]) if "_" in name])
    table = table[~better]
    measured = table[table["noise_scale"].notna() & (table["noise_scale"] > 0)]
    if measured.empty:
        style.empty(axes, "every estimate is undefined:\nthe run is too short for its noise")
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    values = [*measured["noise_scale"], *measured["low"], *measured["high"]]
    middle = float(np.exp(np.log(measured["noise_scale"]).mean()))
    axes.set_ylim(*style.log_limits([value for value in values if middle / 1e3 < value < 1e3 * middle]))
    bottom, top = axes.get_ylim()
    geometries = list(dict.fromkeys(table["geometry"]))
    looks = style.looks(geometries)
    ends = []
    for place, geometry in enumerate(geometries):
        part = measured[measured["geometry"] == geometry]
        if part.empty:
            continue
        colour, marker = looks[geometry]
        # Side by side, so that the bars of one phase do not lie on each other.
        x = part["examples"] * 1.05 ** (place - len(geometries) / 2)
        known = part["low"].notna() | part["high"].notna()
        low, high = part["low"].fillna(bottom / 10).clip(lower=bottom / 10), part["high"].fillna(10 * top)
        axes.vlines(x[known], low[known], high[known], color=colour, linewidth=0.8, alpha=0.7, zorder=2)
        axes.plot(x, part["noise_scale"], color=colour, linewidth=1.0, zorder=3)
        for shown, fill in ((known, colour), (~known, "white")):
            axes.plot(
                x[shown], part["noise_scale"][shown], color=colour, marker=marker, markersize=3.5, linewidth=0,
                markerfacecolor=fill, markeredgewidth=0.8, zorder=4,
            )  # fmt: skip
        label = SYMBOLS.get(geometry, geometry) + (" (matched)" if part["matched"].iloc[0] else "")
        ends.append((float(x.iloc[-1]), float(part["noise_scale"].iloc[-1]), label, colour))
    axes.set_ylim(bottom, top)
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    style.label_ends(axes, ends)
    unit = table["example_unit"].iloc[0]
    axes.set_xlabel(f"{unit}s seen")
    axes.set_ylabel(f"noise scale ({unit}s)")


def _matched(run: dict[str, Any]) -> str:
    """The row that is matched to the optimizer: where there is one, that which is corrected for the batch size."""
    corrected = f"{run['matched']}_corrected"
    return corrected if corrected in run["phases"][0]["noise_scales"] else run["matched"]


def terminal_table(run: dict[str, Any], *, confidence: float = 0.95) -> RenderableType:
    """One column per phase, one row per geometry."""
    from rich import box
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    config, unit = run["config"], run["example_unit"]
    title = (
        f"Noise scale in {unit}s [{100 * confidence:g} % interval], {config['optimizer']['name']} "
        f"lr {config['lr']:g}, batch size {config['batch_size']}, source {run['source']}"
    )
    table = Table(box=box.SIMPLE_HEAD, title=escape(title), pad_edge=False, collapse_padding=True)
    table.add_column(f"{unit}s seen")
    for phase in run["phases"]:
        table.add_column(f"{number(phase['last_examples'], 6)}", justify="right", no_wrap=True)
    table.add_row("mean training loss", *(number(phase["train_loss"], 4) for phase in run["phases"]))
    notes: dict[tuple[int, str], list[str]] = {}
    for geometry in run["phases"][0]["noise_scales"]:
        cells, name = [], geometry.replace("_", " ")
        for phase in run["phases"]:
            estimate = phase["noise_scales"][geometry]
            cells.append(escape(with_interval(estimate["value"], (estimate["low"], estimate["high"]), between="\n")))
            if estimate["note"]:
                note = re.sub(
                    "the steps are as good as [0-9]+ independent ones", "few independent steps", estimate["note"]
                )
                notes.setdefault((phase["last_examples"], note), []).append(name)
        about = ", ".join(["plain"] * (geometry == "l2") + ["matched"] * (geometry == _matched(run)))
        table.add_row(f"{name} ({about})" if about else name, *cells)
    lines = [f"up to {number(last, 6)} {unit}s: {note} ({', '.join(names)})" for (last, note), names in notes.items()]
    return Group(table, *map(Text, lines))


def layer_table(run: dict[str, Any], *, confidence: float = 0.95) -> Table:
    """One row per layer, for the last phase."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    phase = run["phases"][-1]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title = escape(f"By layer, last phase, in {run['example_unit']}s [{100 * confidence:g} % interval]")
    table.add_column("layer")
    for name in ("noise scale", "signal", "noise"):
        table.add_column(name, justify="right")
    for layer, estimate in phase["layers"].items():
        value = with_interval(estimate["value"], (estimate["low"], estimate["high"]))
        table.add_row(escape(layer), escape(value), number(estimate["signal"]), number(estimate["noise"]))
    return table


def write(run: dict[str, Any], folder: str | os.PathLike[str], *, figures: bool = True) -> list[Path]:
    """Write ``noise_scale.json``, the table as CSV and the figure as PDF and PNG; returns the paths.

    Raises:
        ResultsError: if the folder cannot be written.
    """
    place = Path(folder)
    names = ["noise_scale.json", "noise_scale.csv"]
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / names[0]).write_text(json.dumps(run, indent=2, allow_nan=False) + "\n")
        table = compute(run)
        table.to_csv(place / names[1], index=False)
        if figures:
            with style.style():
                figure, (axes,) = style.grid(1)
                draw(axes, table)
                names += style.save(figure, place, "noise_scale")
    except OSError as error:
        raise ResultsError(
            f"cannot write the noise scale to {place}: {error.strerror or error}; choose another folder with --output"
        ) from None
    return [place / name for name in names]
