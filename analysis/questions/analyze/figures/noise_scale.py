"""The noise scale along training, simple and matched, beside the critical batch size that it is meant to predict.

The noise scale against the critical batch size, and against the loss, over workloads and targets.

McCandlish et al. (2018), figure 4: the cheap predictor against what it predicts; all points of an exact predictor lie
on one line. Section 2.3: it grows as the loss falls; Kaplan et al. (2020), section 5.1: at equal loss it hardly depends
on the size of the model.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.definitions import math_symbol
from analysis.estimate.noise import EUCLIDEAN
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import CRITICAL, about
from analysis.present.findings import Analysis

_BOTH = ["simple_noise_scale", "matched_noise_scale"]
_NOISE = ["noise_scale", "low", "high"]
_CRITICAL = ["workload", "optimizer", "target", "parameters", "loss", *CRITICAL, *_NOISE]
_LOSS = ["panel", "curve", "optimizer", "parameters", "loss", *_NOISE]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer and bin of progress to the target, at the batch size with measurements that is
    nearest to the critical one (the middle one if that is unknown); none for optimizers without measurements.

    ``progress`` is the fraction of the steps to target at the middle of the bin; ``simple_noise_scale`` and
    ``matched_noise_scale`` are ratios of mean moments in the bin, pooled over seeds, NaN if a mean is not positive.
    ``simple``, ``simple_low`` and ``simple_high`` are the answer over the second half, with its interval, and so for
    ``matched``.
    """
    rows = []
    for answer in answers:
        size = _chosen(answer)
        if size is None:
            continue
        entry, critical = answer.noise[size], about(answer)
        own = critical | {"batch_size": size, "matched_geometry": answer.matched_geometry}
        for name, of, summary in (
            ("simple", entry.euclidean, entry.summary),
            ("matched", entry.geometry, entry.matched),
        ):
            own |= dict(zip((name, f"{name}_low", f"{name}_high"), (summary.value, *summary.interval), strict=True))
            own |= {f"{name}_symbol": f"${of.symbol}$"} if of else {}
        rows += [own | row for row in entry.trajectory.to_dict("records")]
    return tidy(rows, ["optimizer", "batch_size", "progress", "examples", *_BOTH, "matched_geometry"])


def _chosen(answer: Answer) -> int | None:
    """Return the batch size whose noise scale is drawn; ``None`` if none was measured."""
    sizes = sorted(
        size for size, entry in answer.noise.items() if entry.trajectory.reindex(columns=_BOTH).notna().any(axis=None)
    )
    critical = answer.critical_batch_size
    if not sizes or not critical:
        return sizes[len(sizes) // 2] if sizes else None
    return min(sizes, key=lambda size: abs(np.log(size / critical)))


def frame(axes: Axes, table: pd.DataFrame) -> None:
    """Set the axes from the noise scales and critical batch sizes of all optimizers."""
    axes.set_xlim(0.0, 1.0)
    known = table[[*_BOTH, "critical_batch_size"]].to_numpy(dtype=float).ravel()
    ends = table[["simple_low", "simple_high", "matched_low", "matched_high", "critical_low", "critical_high"]]
    style.log_scale(axes, "y", style.near(pd.Series(known).dropna(), ends, 2))
    ticks = [0, 0.25, 0.5, 0.75, 1.0] if style.most_ticks(axes) > 3 else [0, 0.5, 1.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylabel(f"noise scale ({table['example_unit'].iloc[0]}s)")


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of what has no label of its own."""
    return [
        style.mark("along training", linewidth=0.8),
        style.mark(f"answer, from the second half, [{style.percent(table)}]", linewidth=5, alpha=0.5),
    ]


@figure(
    "noise_scale",
    of=Analysis,
    main=False,
    compute=compute,
    panel="optimizer",
    frame=frame,
    marks=marks,
    title="Noise scale along training",
    caption="Gradient noise scale in {example_unit}s (logarithmic) along the way to the target, as a share of the "
    "steps to target, at the best learning rate of the batch size nearest to the critical one. Solid: the simple noise "
    "scale; dashed: in the geometry of the optimizer, where it was measured. The thick line is the answer, from the "
    "second half of the steps, with its {percent} interval as a band. Dotted with a grey band: critical batch size and "
    "its interval. A line breaks where an estimate is not positive.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw both noise scales along training thinly, their answers over the second half with intervals, and B_crit."""
    row = table.iloc[0]
    bottom, top = axes.get_ylim()
    ends: list[tuple[float, float, str, object]] = []

    def band(low: float, high: float, start: float, **look: Any) -> None:
        if not np.isnan([low, high]).all():
            inside = (bottom if np.isnan(low) else low, top if np.isnan(high) else high)
            axes.fill_between([start, 1.0], *inside, linewidth=0, **look)

    if np.isfinite(row["critical_batch_size"]):
        band(row["critical_low"], row["critical_high"], 0.0, color=style.GREY, alpha=0.2, zorder=0)
        axes.axhline(row["critical_batch_size"], color="black", linewidth=0.9, linestyle=":", zorder=1)
        ends.append((1.0, row["critical_batch_size"], math_symbol(row["definition"]), "black"))
    names = ["simple"] if row["matched_geometry"] == EUCLIDEAN else ["simple", "matched"]
    for name, look in zip(names, style.looks(_BOTH).values(), strict=False):
        known = table[table[f"{name}_noise_scale"].notna()]
        dot = "o" if len(known) == 1 else ""
        axes.plot(table["progress"], table[f"{name}_noise_scale"], color=look.colour, linestyle=look.dashes,
                  linewidth=0.8, marker=dot, zorder=3)  # fmt: skip
        band(row[f"{name}_low"], row[f"{name}_high"], 0.5, color=look.colour, alpha=0.25, zorder=2)
        if np.isfinite(row[name]):
            axes.hlines(row[name], 0.5, 1.0, color=look.colour, linewidth=2, zorder=4)
            ends.append((1.0, row[name], row[f"{name}_symbol"], look.colour))
        elif len(known):
            last = known.iloc[-1]
            ends.append((last["progress"], last[f"{name}_noise_scale"], row[f"{name}_symbol"], look.colour))
    style.label_ends(axes, ends)
    axes.set_xlabel(f"share of the steps to target\nat batch size {row['batch_size']:g}")


def compute_noise(answers: Sequence[Answer], columns: Sequence[str]) -> pd.DataFrame:
    """Return one row per optimizer, workload and target with a noise scale, with these columns first.

    ``noise_scale`` is the simple one with its interval ``low`` to ``high``, and the critical batch size has the columns
    of :data:`.of_answers.CRITICAL`, all in examples; ``parameters`` is the size of the model, ``loss`` the value of the
    target.
    """
    rows = []
    for answer in answers:
        noise = answer.noise_scale
        if noise.value is not None:
            ends = dict(zip(_NOISE, (noise.value, *noise.interval), strict=True))
            model = {"workload": answer.group.workload, "parameters": answer.group.parameters}
            rows.append(about(answer) | model | {"loss": answer.target.value} | ends)
    return tidy(rows, columns)


def compute_critical(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return the rows of :func:`compute_noise` with a critical batch size; none if there is only one workload and
    target, whose own figures show both."""
    known = [answer for answer in answers if answer.critical_batch_size is not None]
    table = compute_noise(known, _CRITICAL)
    return table if len(table[["workload", "target"]].drop_duplicates()) > 1 else table.iloc[:0]


@figure(
    "noise_against_critical",
    of=Analysis,
    main=False,
    compute=compute_critical,
    whole=True,
    title="Noise scale against critical batch size",
    caption="The simple noise scale against the critical batch size, one point for every workload, optimizer and "
    "target, with {percent} intervals; an open end is an arrow or left out. On the grey line they are equal.",
)
def draw_critical(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one mark per workload and optimizer, and the line on which both are equal."""
    critical, low, high = CRITICAL
    table = table.rename(columns={low: "x_low", high: "x_high"})
    names = table["workload"] + ", " + table["optimizer"]
    unit = table["example_unit"].iloc[0] if table["example_unit"].nunique() == 1 else "example"
    across = style.near(table[critical], table[["x_low", "x_high"]], 4)
    shown = np.concatenate([across, style.near(table["noise_scale"], table[["low", "high"]], 4)])
    style.log_axes(axes, shown, shown, f"critical batch size ({unit}s)", f"noise scale ({unit}s)")
    axes.axline((shown.min(), shown.min()), (shown.max(), shown.max()), color=style.GREY, linewidth=0.6, zorder=1)
    looks = style.looks(names)
    for name, look in looks.items():
        style.points(axes, table[names == name], critical, "noise_scale", look)
    key = [style.handle(name, look, line=False) for name, look in looks.items()]
    style.key(axes, key, table[critical], table["high"].combine_first(table["noise_scale"]))


def compute_loss(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return the rows of :func:`compute_noise` in the order of the losses, with a ``panel`` for every workload and
    metric and a ``curve`` for every optimizer and model size; no rows for a curve with only one target."""
    table = compute_noise(answers, _LOSS)
    if table.empty:
        return table
    metrics = {str(answer.target): style.words(answer.target.metric) for answer in answers}
    sizes = len({answer.group.parameters for answer in answers}) > 1
    told = [f", {size:,.0f} parameters" if sizes and size > 0 else "" for size in table["parameters"]]
    table["panel"] = table["workload"] + ", " + table["target"].map(metrics)
    table["curve"] = table["optimizer"] + told
    several = table.groupby(["panel", "curve"])["loss"].transform("nunique") > 1
    table = table[several].sort_values("loss", kind="stable").reset_index(drop=True)
    return table.drop(columns="workload")


@figure(
    "noise_against_loss",
    of=Analysis,
    main=False,
    compute=compute_loss,
    panel="panel",
    whole=True,
    title="Noise scale against loss",
    caption="The simple noise scale in the second half of the steps to every target, in {example_unit}s, against the "
    "target, a curve for every optimizer and size of the model; bars are {percent} intervals, an arrow is an open end.",
)
def draw_loss(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a line with marks for every curve, the loss falling to the right where a lower one is better."""
    style.log_scale(axes, "y", style.near(table["noise_scale"], table[["low", "high"]], 4))
    looks = style.looks(table["curve"])
    for name, look in looks.items():
        rows = table[table["curve"] == name]
        axes.plot(rows["loss"], rows["noise_scale"], color=look.colour, linestyle=look.dashes, zorder=3)
        style.points(axes, rows, "loss", "noise_scale", look)
    if "<" in str(table["target"].iloc[0]):
        axes.invert_xaxis()
    axes.set_xlabel(f"{table['panel'].iloc[0].rpartition(', ')[2]} at the target")
    axes.set_ylabel(f"noise scale ({table['example_unit'].iloc[0]}s)")
    style.key(axes, [style.handle(name, look) for name, look in looks.items()], table["loss"], table["noise_scale"])
