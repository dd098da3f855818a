"""Critical batch size against data, model size, loss or compute: points, laws with bands, extrapolations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.present import style
from analysis.present.figures import FigureKind
from analysis.present.numbers import with_interval
from analysis.questions.scaling.fits import Law, held, option

if TYPE_CHECKING:
    from analysis.questions.scaling import Scaling
    from analysis.questions.scaling.points import ScalingPoint

_RESOLUTION = 60
_COLUMNS = ["optimizer", "kind", "set", "x", "critical_batch_size", "low", "high", "x_low", "x_high", "label"]


def compute(scaling: Scaling, axis: str, held_data: float | None = None) -> pd.DataFrame:
    """Rows of three kinds, see column ``kind``.

    ``point``: a critical batch size with its interval; ``set`` names what it has in common with the points it is joined
    to. ``law``: the law within the data, ``extrapolation``: beyond them, both with the interval of a new point; where
    ``axis`` is an option of the workload there is a law only through a single set. ``label`` holds the exponent, of the
    law or of all sets together. Columns on every row: ``axis, axis_unit, held_data, unit, definition, confidence``.

    Args:
        scaling: the laws.
        axis: one with a law or a comparison.
        held_data: ``None``, or the data at which the points are compared instead of at equal loss.
    """
    own = [law for law in scaling.laws if law.axis == axis and law.points and held_data is None]
    related = [
        law for law in scaling.comparisons if law.axis == axis and scaling.points[law.points[0]].held_data == held_data
    ]
    compared = [law for law in related if law.kind == "set"]
    shown = own or [law for law in compared if law.fit] if own or len(compared) == 1 else []
    members = dict.fromkeys(index for law in (own or compared) for index in law.points)
    rows: list[dict[str, Any]] = []
    for index in members:
        point = scaling.points[index]
        low, high = point.data_interval if axis == "data" else (None, None)
        rows.append(
            {
                "optimizer": point.optimizer,
                "kind": "point",
                "set": held(point, axis),
                "x": option(point, axis),
                "critical_batch_size": point.critical,
                "low": point.interval[0],
                "high": point.interval[1],
                "x_low": low,
                "x_high": high,
                "label": _label([*own, *related], point),
            }
        )
    for law in shown:
        rows += _curve(law, "law", float(law.x.min()), float(law.x.max()))
        asked = [prediction.x for prediction in law.predictions]
        first, last = float(law.x.min()), float(law.x.max())
        if min(asked, default=first) < first:
            rows += _curve(law, "extrapolation", min(asked), first)
        if max(asked, default=last) > last:
            rows += _curve(law, "extrapolation", last, max(asked))
    known = (own or compared)[0]
    return pd.DataFrame(rows, columns=_COLUMNS).assign(
        axis=axis,
        axis_unit=known.unit,
        held_data=held_data,
        unit=scaling.points[known.points[0]].unit,
        definition=scaling.config.definition,
        confidence=scaling.config.confidence,
    )


def _curve(law: Law, kind: str, first: float, last: float) -> list[dict[str, Any]]:
    if law.fit is None:
        return []
    grid = np.geomspace(first, last, _RESOLUTION)
    low, high = law.fit.prediction(grid)
    columns = zip(grid, law.fit.at(grid), low, high, strict=True)
    return [
        {"optimizer": law.optimizer, "kind": kind, "x": x, "critical_batch_size": y, "low": a, "high": b}
        for x, y, a, b in columns
    ]


def _label(laws: Sequence[Law], point: ScalingPoint) -> str:
    """Exponent of the law of a point's optimizer, or of all its sets together; empty without one."""
    found = [law for law in laws if (law.workload, law.optimizer) == (point.family, point.optimizer) and law.fit]
    by_kind = {law.kind: law for law in found}
    law = by_kind.get("law") or by_kind.get("pooled") or (found[0] if len(found) == 1 else None)
    if law is None or law.fit is None:
        return ""
    return f"k = {with_interval(law.fit.exponent, law.fit.exponent_interval)}"


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; one colour and marker per optimizer, points of one set joined by thin lines, laws solid within the data
    and dashed beyond."""
    points = table[table["kind"] == "point"]
    axes.set_xscale("log")
    axes.set_yscale("log")
    first, last = float(table["x"].min()), float(table["x"].max())
    margin = (last / first) ** 0.08
    axes.set_xlim(first / margin, last * margin)
    axes.set_ylim(*style.log_limits(_within(table)))
    looks = style.looks(table["optimizer"])
    handles = [_draw_optimizer(axes, table[table["optimizer"] == name], name, look) for name, look in looks.items()]
    about = table.iloc[0]
    if (table["kind"] == "extrapolation").any():
        handles.append(axes.plot([], [], "--", color=style.GREY, label="beyond the data")[0])
    _key(axes, handles, table, f"$B_{{crit}} \\propto x^k$ [{100 * about['confidence']:g} % interval]")
    values = sorted(set(points["x"]))
    style.log_axis(axes.xaxis, values if len(values) <= 6 and about["axis"] not in ("data", "compute") else None)
    style.log_axis(axes.yaxis)
    equal_data = f", at data {style.plain(about['held_data'])}" if pd.notna(about["held_data"]) else ""
    axes.set_xlabel(_axis_label(about["axis"], about["axis_unit"]) + equal_data)
    definition = "" if about["definition"] == "pareto" else f" by {style.words(about['definition'])}"
    axes.set_ylabel(f"critical batch size{definition} ({about['unit']}s)")


def _within(table: pd.DataFrame) -> np.ndarray:
    """Everything to show; of a band no more than a factor 10 beyond the points and the laws, or it would be all."""
    lines = table["critical_batch_size"]
    ends = table[["low", "high"]].to_numpy(dtype=float).ravel()
    return np.concatenate([lines, ends[(ends > lines.min() / 10) & (ends < lines.max() * 10)]])


def _axis_label(axis: str, unit: str) -> str:
    words = {"loss": "target loss", "parameters": "parameters N", "data": "data D", "compute": "compute C = 6 N D"}
    label = words.get(axis, style.words(axis))
    return f"{label} ({unit})" if unit and unit != axis else label


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, look: tuple[str, str]) -> Line2D:
    """Returns the handle for the key, labelled with the exponent."""
    colour, marker = look
    points = part[part["kind"] == "point"]
    for _, members in points.groupby("set", sort=False):
        members = members.sort_values("x")
        axes.plot(members["x"], members["critical_batch_size"], color=colour, linewidth=0.5, alpha=0.6, zorder=2)
    axes.errorbar(
        points["x"],
        points["critical_batch_size"],
        xerr=_lengths(points["x"], points["x_low"], points["x_high"]),
        yerr=_lengths(points["critical_batch_size"], points["low"], points["high"]),
        fmt=marker,
        color=colour,
        elinewidth=0.6,
        zorder=4,
    )
    beyond = part[part["kind"] == "extrapolation"]
    pieces = [(part[part["kind"] == "law"], "-")]
    pieces += [(beyond.iloc[start : start + _RESOLUTION], "--") for start in range(0, len(beyond), _RESOLUTION)]
    for piece, line in pieces:
        if len(piece):
            axes.plot(piece["x"], piece["critical_batch_size"], line, color=colour, zorder=3)
            shade = 0.16 if line == "-" else 0.08
            axes.fill_between(piece["x"], piece["low"], piece["high"], color=colour, alpha=shade, linewidth=0)
    drawn = "-" if len(pieces[0][0]) else ""
    label = f"{name}  {points['label'].iloc[0]}".strip()
    return axes.plot([], [], marker=marker, linestyle=drawn, color=colour, label=label)[0]


def _lengths(at: pd.Series, low: pd.Series, high: pd.Series) -> np.ndarray:
    """Of error bars down and up, shape ``[2, n]``; 0 where there is no interval."""
    lengths = np.array([at - low.astype(float), high.astype(float) - at], dtype=float)
    return np.where(lengths > 0, lengths, 0.0)


def _key(axes: Axes, handles: list[Line2D], table: pd.DataFrame, title: str) -> None:
    """In the upper corner away from the law; the y limit is raised to make room for it."""
    if len(handles) > style.MOST_INSIDE:
        style.key(axes, handles, table["x"], table["critical_batch_size"], title=title)
        return
    slope = np.polyfit(np.log(table["x"]), np.log(table["critical_batch_size"]), 1)[0] if len(table) > 1 else 0.0
    share = min(0.6, ((len(handles) + 1) * style.SMALL * 1.4 + 10) / 72 / (style.PANEL_HEIGHT * 0.75))
    bottom, top = np.log(axes.get_ylim())
    # lines and error bars, not bands, keep clear of the key, which may be as wide as the axes
    highest = np.log(np.nanmax(table.loc[table["kind"] == "point", ["critical_batch_size", "high"]].to_numpy(float)))
    left, right = np.log(axes.get_xlim())
    width = 0.62 * (right - left)
    near = np.log(table["x"]) < left + width if slope > 0 else np.log(table["x"]) > right - width
    if near.any():
        shown = table.loc[near, ["critical_batch_size", "high"]].to_numpy(float)
        highest = min(highest, float(np.log(np.nanmax(shown))))
        top = max(top, bottom + (highest - bottom) / (1.0 - share))
    axes.set_ylim(np.exp(bottom), np.exp(top))
    axes.legend(
        handles=handles, title=title, title_fontsize=style.SMALL, alignment="left",
        loc="upper left" if slope > 0 else "upper right", frameon=False,
        labelcolor=[handle.get_color() for handle in handles], handlelength=1.4, handletextpad=0.5, borderaxespad=0.3,
        borderpad=0.0, labelspacing=0.35,
    )  # fmt: skip


SCALING = FigureKind(compute, draw)
