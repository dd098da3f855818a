"""Critical batch size against data, model size, loss or compute: points, laws with bands, extrapolations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.definitions import HEADLINE
from analysis.formatting import with_interval
from analysis.present import style
from analysis.present.figures import FigurePart, along, figure, in_file_name, parts, tidy
from extensions.scale.fits import NOTHING, ScalingLaw, held
from extensions.scale.points import ScalingPoint
from extensions.scale.scaling import Scaling

_RESOLUTION = 60  # Points of a law's curve
_COLUMNS = ["optimizer", "kind", "set", "x", "critical_batch_size", "low", "high", "x_low", "x_high", "label"]
_WORDS = {"loss": "target loss", "parameters": "parameters N", "data": "data D", "compute": "compute C = 6 N D"}


@dataclass(frozen=True)
class Against:
    """Content of one figure: critical batch sizes against ``axis``; if ``held_data`` is given, compared at these data
    instead of at equal loss."""

    scaling: Scaling
    axis: str
    held_data: float | None = None


@parts.register(Scaling)
def _(result: Scaling) -> Iterable[FigurePart]:
    axes_held: dict[tuple[str, float | None], None] = dict.fromkeys(
        (law.axis, None) for law in result.laws if len(law.points) > 1
    )
    axes_held |= dict.fromkeys((law.axis, result.points[law.points[0]].held_data) for law in result.comparisons)
    for axis, data in axes_held:
        suffix = f"-{in_file_name(axis)}" + (f"-data_{data:g}" if data else "")
        yield FigurePart(Against(result, axis, data), suffix)


def compute(part: Against) -> pd.DataFrame:
    """Return rows of three kinds (column ``kind``).

    ``point``: a critical batch size with its interval; ``set`` is what it has in common with the points to which it is
    joined. ``law``: the law within the data, and ``extrapolation``: beyond them, both with the interval of a new point;
    if the axis is an option of the workload, there is a law only through a single set. ``label`` contains the exponent
    of the law or of all sets together.
    """
    scaling, axis, held_data = part.scaling, part.axis, part.held_data
    own = [law for law in scaling.laws if law.axis == axis and law.points and held_data is None]
    related = [
        law for law in scaling.comparisons if law.axis == axis and scaling.points[law.points[0]].held_data == held_data
    ]
    compared = [law for law in related if law.kind == "set"]
    shown = own or [law for law in compared if law.fit] if own or len(compared) == 1 else []
    rows: list[dict[str, Any]] = []
    for index in dict.fromkeys(index for law in (own or compared) for index in law.points):
        point = scaling.points[index]
        x_low, x_high = point.data_interval if axis == "data" else (None, None)
        values = (held(point, axis), point.values.get(axis), point.critical_batch_size, *point.interval, x_low, x_high)
        row = (point.optimizer, "point", *values, _label([*own, *related], point))
        rows.append(dict(zip(_COLUMNS, row, strict=True)))
    rows += [row for law in shown for row in _curves(law)]
    known = (own or compared)[0]
    columns = {
        "axis": axis,
        "axis_unit": known.unit,
        "held_data": held_data,
        "unit": scaling.points[known.points[0]].unit,
        "confidence": scaling.config.confidence,
        "definition": scaling.config.definition,
    }
    return tidy([row | columns for row in rows], _COLUMNS)


def _curves(law: ScalingLaw) -> Iterator[dict[str, Any]]:
    """Yield the law within the data, and from there to all requested values."""
    if law.fit is None:
        return
    first, last, asked = float(law.x.min()), float(law.x.max()), [prediction.x for prediction in law.predictions]
    pieces = (("law", first, last), ("extrapolation", min(asked, default=first), first))
    for kind, start, stop in (*pieces, ("extrapolation", last, max(asked, default=last))):
        if start < stop or kind == "law":
            grid = np.geomspace(start, stop, _RESOLUTION)
            low, high = law.fit.prediction(grid)
            for row in along(kind, x=grid, critical_batch_size=law.fit.at(grid), low=low, high=high):
                yield row | {"optimizer": law.optimizer}


def _label(laws: Sequence[ScalingLaw], point: ScalingPoint) -> str:
    """Return the exponent of the law of a point's optimizer, or of all its sets together; empty if there is none."""
    fitted_laws = [law for law in laws if (law.workload, law.optimizer) == (point.family, point.optimizer) and law.fit]
    by_kind = {law.kind: law for law in fitted_laws}
    law = by_kind.get("law") or by_kind.get("pooled") or (fitted_laws[0] if len(fitted_laws) == 1 else None)
    if law is None or law.fit is None:
        return ""
    return NOTHING if law.says == NOTHING else f"k = {with_interval(law.fit.exponent, law.fit.exponent_interval)}"


@figure("scaling", of=Scaling, compute=compute)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw points, with thin lines that join those of one set, and laws, thick within the data and thin beyond."""
    points, about = table[table["kind"] == "point"], table.iloc[0]
    values = sorted(set(points["x"]))
    label, unit = _WORDS.get(about["axis"], style.words(about["axis"])), about["axis_unit"]
    label += f" ({unit})" if unit and unit != about["axis"] else ""
    label += f", at data {style.plain(about['held_data'])}" if pd.notna(about["held_data"]) else ""
    definition = "" if about["definition"] == HEADLINE else f" by {style.words(about['definition'])}"
    ticks = values if len(values) <= 6 and about["axis"] not in ("data", "compute") else None
    y_label = f"critical batch size{definition} ({about['unit']}s)"
    shown = style.near(table["critical_batch_size"], table[["low", "high"]], 3)
    style.log_axes(axes, table["x"], shown, label, y_label, ticks=ticks)
    each = style.each(table, "point", "law", "extrapolation")
    handles = [_draw_optimizer(axes, name, look, *kinds) for name, look, kinds in each]
    if (table["kind"] == "extrapolation").any():
        handles.append(style.mark("beyond the data", linewidth=0.6))
    ends = [line.get_ydata() for line in axes.lines if line.get_linestyle() == ":"]
    low, high = axes.get_ylim()
    if any(((low < end) & (end < high)).any() for end in map(np.asarray, ends)):
        handles.append(style.mark("ends of a wide interval", linestyle=":", linewidth=0.6))
    title = f"$B_{{crit}} \\propto x^k$ [{style.percent(table)}]"
    inside = table["high"].where(table["high"] < high)
    tops = points["high"].combine_first(inside).combine_first(table["critical_batch_size"])
    style.key(axes, handles, table["x"], tops, title=title)


def _draw_optimizer(axes: Axes, name: str, look: style.MarkStyle, points: pd.DataFrame, *laws: pd.DataFrame) -> Line2D:
    """Draw one optimizer and return its key entry, labelled with the exponent."""
    for _, members in points.groupby("set", sort=False):
        members = members.sort_values("x")
        axes.plot(members["x"], members["critical_batch_size"], color=look.colour, linewidth=0.5, alpha=0.6, zorder=2)
    style.points(axes, points, "x", "critical_batch_size", look)
    for part, width in zip(laws, (1.2, 0.6), strict=True):
        for start in range(0, len(part), _RESOLUTION):
            piece = part.iloc[start : start + _RESOLUTION]
            style.curve(axes, piece, "x", "critical_batch_size", look, linewidth=width)
    return style.handle(f"{name}  {points['label'].iloc[0]}".strip(), look, line=any(map(len, laws)))
