"""Every definition of the critical batch size side by side: one row each, a dot with its interval per optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.estimate.definitions import in_words
from analysis.present import style
from analysis.present.figures import FIGURES, FigureKind
from analysis.present.numbers import percent

if TYPE_CHECKING:
    from analysis.estimate.result import Answer

_LANE = 0.17
"""Height of the lane of one optimizer within a row, inches."""

_LABELS = 0.3
"""Width that the names of the definitions take beyond what other figures need, inches."""

_SLACK = 0.85
"""Height of the axes and their labels beside the rows, inches."""


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per optimizer and definition.

    ``value`` in examples with its interval ``low`` to ``high``, NaN where open or not defined; ``smallest`` and
    ``largest`` measured batch size that reached the target.
    """
    rows = []
    for answer in answers:
        sizes = [point.batch_size for point in answer.points if point.reached]
        for entry in answer.estimate.critical.values():
            rows.append(
                {
                    "optimizer": answer.group.optimizer,
                    "definition": entry.definition,
                    "label": in_words(entry.definition, entry.options),
                    "value": entry.value,
                    "low": entry.interval[0],
                    "high": entry.interval[1],
                    "smallest": min(sizes, default=None),
                    "largest": max(sizes, default=None),
                    "remark": entry.remark,
                    "confidence": answer.confidence,
                    "example_unit": answer.group.example_unit,
                    "tokens_per_example": answer.group.tokens_per_example,
                    "target": str(answer.target),
                }
            )
    table = pd.DataFrame(rows)
    numbers = ["value", "low", "high", "smallest", "largest"]
    return table.astype(dict.fromkeys(numbers, float))


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """A log axis in examples; an open end of an interval is an arrow; grey: the measured batch sizes."""
    shown = table[table[["value", "low", "high"]].notna().any(axis=1)]
    if shown.empty:
        style.empty(axes, "no definition has a value:\nthe target was reached at fewer than two batch sizes")
        return
    looks = style.looks(table["optimizer"])
    definitions = list(dict.fromkeys(table["definition"]))
    labels = [_broken(label) for label in table.drop_duplicates("definition")["label"]]
    lanes = dict(zip(looks, np.linspace(-0.5, 0.5, len(looks) + 2)[1:-1], strict=True))
    lines = max(label.count("\n") for label in labels) + 1.5
    row_height = max(_LANE * (len(looks) + 0.7), lines * style.SMALL * style.LINE / 72)
    figure = cast(Figure, axes.figure)
    figure.set_size_inches(figure.get_size_inches()[0], _SLACK + row_height * len(definitions))
    axes.set_xscale("log")
    ranges = table[["smallest", "largest"]].to_numpy().ravel()
    axes.set_xlim(*style.log_limits([*shown[["value", "low", "high"]].to_numpy().ravel(), *ranges]))
    axes.set_ylim(len(definitions) - 0.5, -0.5)
    axes.axvspan(table["smallest"].min(), table["largest"].max(), color=style.GREY, alpha=0.12, linewidth=0, zorder=0)
    for row in range(1, len(definitions)):
        axes.axhline(row - 0.5, color=style.GREY, linewidth=0.4, alpha=0.6, zorder=1)
    for _, entry in table.iterrows():
        place = definitions.index(entry["definition"]) + lanes[entry["optimizer"]]
        _draw_entry(axes, entry, place, *looks[entry["optimizer"]])
    axes.set_yticks(range(len(definitions)), labels)
    axes.tick_params(axis="y", length=0)
    style.log_axis(axes.xaxis)
    style.token_axis(axes, table["tokens_per_example"])
    target = style.words(table["target"].iloc[0])
    texts = (f"critical batch size ({table['example_unit'].iloc[0]}s)", f"to {target}")
    across = style.size(axes)[0] - _LABELS - 0.1
    axes.set_xlabel(style.literal("\n".join(style.wrapped(text, across, 8, lines=2) for text in texts)))


def marks(table: pd.DataFrame) -> list[Line2D]:
    """The optimizers, and what is not one."""
    shown = table[["value", "low", "high"]]
    if shown.isna().all(axis=None):
        return []
    handles = [
        Line2D([], [], color=colour, marker=marker, label=style.literal(name))
        for name, (colour, marker) in style.looks(table["optimizer"]).items()
    ]
    interval = f"{percent(table['confidence'].iloc[0])} % interval"
    handles.append(Line2D([], [], color=style.GREY, marker="|", linestyle="", label=interval))
    if (shown["low"].isna() ^ shown["high"].isna()).any():
        handles.append(Line2D([], [], color=style.GREY, marker=">", linestyle="", label="open end"))
    handles.append(Line2D([], [], color=style.GREY, alpha=0.25, linewidth=6, label="measured"))
    return handles


def _broken(label: str) -> str:
    """Every option of a definition on a line of its own; one of its own name is said once."""
    name, _, options = label.partition(" (")
    given = [option for option in options.rstrip(")").split(", ") if options]
    own = given and given[0].startswith(f"{name} ")
    return "\n".join(given if own else [name, *given]).replace("_", " ")


def _draw_entry(axes: Axes, entry: pd.Series, place: float, colour: str, marker: str) -> None:
    left, right = axes.get_xlim()
    low, high, value = entry["low"], entry["high"], entry["value"]
    if np.isnan([low, high, value]).all():
        words = "not defined" if "not defined" in entry["remark"] else "no value"
        axes.annotate(
            words,
            (0.5, place),
            xycoords=("axes fraction", "data"),
            ha="center",
            va="center",
            fontsize=style.SMALL - 1,
            color=style.ink(colour),
            path_effects=style.halo(),
        )
        return
    if np.isfinite(low) or np.isfinite(high):
        ends = (low if np.isfinite(low) else left, high if np.isfinite(high) else right)
        axes.plot(ends, [place, place], color=colour, linewidth=1.0, zorder=3, solid_capstyle="butt")
        for end, open_end, arrow in ((ends[0], np.isnan(low), "<"), (ends[1], np.isnan(high), ">")):
            mark = arrow if open_end else "|"
            axes.plot([end], [place], mark, color=colour, markersize=4, zorder=3, clip_on=False)
    if np.isfinite(value):
        axes.plot([value], [place], marker, color=colour, markersize=4, zorder=4)


def caption(table: pd.DataFrame) -> str:
    """What is seen, in words."""
    return (
        f"The critical batch size in {table['example_unit'].iloc[0]}s to {style.words(table['target'].iloc[0])}, by "
        f"every definition; bars are {percent(table['confidence'].iloc[0])} % intervals, and an arrow is an end that "
        "the data leave open. Grey: the batch sizes that reached the target. The axis is logarithmic. Definitions "
        "answer different questions: only values of one definition may be compared."
    )


FIGURES.register("definitions")(
    FigureKind(compute, draw, marks=marks, title="Definitions side by side", caption=caption)
)
