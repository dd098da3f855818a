"""All definitions of the critical batch size side by side: one row each, with a dot and an interval per optimizer."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from analysis.estimate.definitions import EXTRAPOLATED, in_words
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import about
from analysis.present.findings import Analysis
from analysis.present.style.labels import LINE
from analysis.present.style.scales import ink

_LANE = 0.17  # Height in inches of the lane of one optimizer within a row
_LABELS = 0.3  # Width in inches that the names of the definitions take in addition to other labels
_SLACK = 0.85  # Height in inches of the axis and its labels, in addition to the rows

_NUMBERS = ["value", "low", "high"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer and definition; no rows if no definition has a value.

    ``value`` is in examples with its interval ``low`` to ``high``, NaN where open or undefined; ``smallest`` and
    ``largest`` are the measured batch sizes that reached the target.
    """
    rows = []
    for answer in answers:
        sizes = [point.batch_size for point in answer.points if point.reached]
        for entry in answer.definitions.values():
            values = dict(zip(_NUMBERS, (entry.value, *entry.interval), strict=True))
            ends = {"smallest": min(sizes, default=None), "largest": max(sizes, default=None)}
            label = {"label": in_words(entry.definition, entry.options), "remark": entry.remark}
            rows.append(about(answer) | {"definition": entry.definition} | values | ends | label)
    table = tidy(rows, ["optimizer", "definition", "label", *_NUMBERS, "smallest", "largest", "remark"])
    own = [name for name in table if name.startswith(("critical_", "definition_"))]
    known = table[_NUMBERS].notna().any(axis=1).groupby(table["definition"]).transform("any")
    return table.drop(columns=own)[known].reset_index(drop=True)


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the optimizers, and of the other marks."""
    handles = [style.handle(name, look, line=False) for name, look in style.looks(table["optimizer"]).items()]
    handles.append(style.mark(style.percent(table), marker="|", linestyle=""))
    if (table["low"].isna() ^ table["high"].isna()).any():
        handles.append(style.mark("open end", marker=">", linestyle=""))
    if table["remark"].str.startswith(EXTRAPOLATED).any():
        handles.append(style.mark("extrapolated", marker="o", linestyle="", markersize=4, markerfacecolor="white"))
    return [*handles, style.mark("measured", alpha=0.25, linewidth=6)]


@figure(
    "definitions",
    of=Analysis,
    main=False,
    compute=compute,
    marks=marks,
    title="Definitions side by side",
    caption="The critical batch size in {example_unit}s to {target}, by every definition; bars are {percent} "
    "intervals, and an arrow is an end that the data leave open. Grey: the batch sizes that reached the target; open "
    "marks are extrapolated. A definition without a value or a bound is left out. "
    "The axis is logarithmic. Definitions answer different questions: only values of one definition may be "
    "compared.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a log axis in examples, with an arrow at every open end of an interval, and the measured batch sizes in
    grey."""
    looks = style.looks(table["optimizer"])
    definitions = list(dict.fromkeys(table["definition"]))
    labels = [_broken(label) for label in table.drop_duplicates("definition")["label"]]
    lanes = dict(zip(looks, np.linspace(-0.5, 0.5, len(looks) + 2)[1:-1], strict=True))
    lines = max(label.count("\n") for label in labels) + 1.5
    row_height = max(_LANE * (len(looks) + 0.7), lines * style.SMALL * LINE / 72)
    figure = cast(Figure, axes.figure)
    figure.set_size_inches(figure.get_size_inches()[0], _SLACK + row_height * len(definitions))
    style.log_scale(axes, "x", table[[*_NUMBERS, "smallest", "largest"]])
    axes.set_ylim(len(definitions) - 0.5, -0.5)
    axes.axvspan(table["smallest"].min(), table["largest"].max(), color=style.GREY, alpha=0.12, linewidth=0, zorder=0)
    for row in range(1, len(definitions)):
        axes.axhline(row - 0.5, color=style.GREY, linewidth=0.4, alpha=0.6, zorder=1)
    for _, entry in table.iterrows():
        height = definitions.index(entry["definition"]) + lanes[entry["optimizer"]]
        _draw_entry(axes, entry, height, looks[entry["optimizer"]])
    axes.set_yticks(range(len(definitions)), labels)
    axes.tick_params(axis="y", length=0)
    style.token_axis(axes, table["tokens_per_example"])
    texts = (f"critical batch size ({table['example_unit'].iloc[0]}s)", f"to {style.words(table['target'].iloc[0])}")
    across = style.size(axes)[0] - _LABELS - 0.1
    axes.set_xlabel(style.literal("\n".join(style.wrapped(text, across, 8, lines=2) for text in texts)))


def _broken(label: str) -> str:
    """Return the label with every option of a definition on a line of its own, without repeating the definition's
    name."""
    name, _, options = label.partition(" (")
    given = [option for option in options.rstrip(")").split(", ") if options]
    own = given and given[0].startswith(f"{name} ")
    return "\n".join(given if own else [name, *given]).replace("_", " ")


def _draw_entry(axes: Axes, entry: pd.Series, height: float, look: style.MarkStyle) -> None:
    value, low, high = entry[_NUMBERS].astype(float)
    if np.isnan([low, high, value]).all():
        axes.annotate(
            "not defined" if "not defined" in entry["remark"] else "no value", (0.5, height), ha="center", va="center",
            xycoords=("axes fraction", "data"), fontsize=style.SMALL - 1, color=ink(look.colour),
            path_effects=[withStroke(linewidth=1.8, foreground="white")],
        )  # fmt: skip
        return
    if np.isfinite(low) or np.isfinite(high):
        ends = np.where(np.isfinite([low, high]), [low, high], axes.get_xlim())
        axes.plot(ends, [height, height], color=look.colour, linewidth=1.0, zorder=3, solid_capstyle="butt")
        for end, known, arrow in zip(ends, (low, high), "<>", strict=True):
            mark = arrow if np.isnan(known) else "|"
            axes.plot([end], [height], mark, color=look.colour, markersize=4, zorder=3, clip_on=False)
    if np.isfinite(value):
        fill = "white" if entry["remark"].startswith(EXTRAPOLATED) else look.colour
        axes.plot([value], [height], look.marker, color=look.colour, markersize=4, markerfacecolor=fill, zorder=4)
