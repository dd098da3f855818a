"""Steps to target against learning rate, one line per batch size, and learning rates against an option tuned beside
them, to check that every optimum is inside the grid.

Shallue et al. (2019), the check of the search space: the best trial has to lie inside the region that was searched.
Momentum is drawn as 1 - momentum on a log axis, as there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.estimate.result import Answer
from analysis.estimate.studies import Study, options_of
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import of_each
from analysis.present.findings import Analysis
from cbs.registry.values import is_number
from cbs.trial.record import TrialStatus

_COLUMNS = [
    *("optimizer", "batch_size", "lr", "steps", "low", "high", "seeds_reached", "seeds", "steps_lower_bound"),
    *("at_most", "diverged"),
]
_TUNED = ["panel", "optimizer", "batch_size", "option", "lr", "value", "outcome", "best"]
_OUTCOMES: dict[str, dict[str, Any]] = {
    "reached": {"marker": "o", "color": style.COLOURS[0]},
    "reached by some seeds": {"marker": "o", "color": style.COLOURS[0], "markerfacecolor": "white"},
    "missed": {"marker": "^", "color": style.COLOURS[4], "markerfacecolor": "white"},
    "diverged": {"marker": "x", "color": style.COLOURS[1]},
}
_STAR: dict[str, Any] = {"marker": "*", "markersize": 9, "color": "black", "markeredgecolor": "white"}
_HOLLOW = {"markersize": 3, "markerfacecolor": "white"}
_BOUND = {"markersize": 2.5, "markerfacecolor": "white", "markeredgewidth": 0.6}
_BEST = {"markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.5}
# Categories that are marked, see `_marked`, with marker and style
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "all seeds": ("o", {"markersize": 2.5}),
    "only some seeds reached it": ("o", _HOLLOW),
    "more steps than this": ("^", _BOUND),
    "fewer steps than this": ("v", _BOUND),
    "diverged": ("x", {"markersize": 4}),
    "best": ("*", _BEST),
    "best, at the edge of the grid": ("*", _BEST | {"markeredgecolor": style.ALERT, "markeredgewidth": 1.0}),
}


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer, batch size and learning rate; none if no trial got far enough to draw.

    ``steps`` is the geometric mean over the seeds that reached the target (``seeds_reached`` of ``seeds``), ``low`` and
    ``high`` their range, NaN if none did; ``steps_lower_bound`` is then a lower bound of the steps; ``at_most`` says
    that all of them were past the target when first evaluated; ``diverged`` is a number of seeds.
    """
    rows, tuned = [], any(answer.group.tuned for answer in answers)
    for answer in answers:
        about = {"example_unit": answer.group.example_unit, "target": str(answer.target)}
        for study, point in zip(answer.studies, answer.points, strict=True):
            study = study.along_lr
            for index, lr in enumerate(study.lrs):
                best = point.best_lr == lr
                row = {"optimizer": answer.group.optimizer, "batch_size": study.batch_size, "lr": lr}
                row |= ended(study, index) | ({"tuned": point.tuned} if tuned else {})
                row |= {"best": best, "at_grid_edge": bool(best and point.at_grid_edge)}
                rows.append(row | about)
    table = tidy(rows, _COLUMNS)
    known = table[["steps", "steps_lower_bound"]].notna().any(axis=1)
    return table[known.groupby(table["optimizer"]).transform("any")].reset_index(drop=True)


def ended(study: Study, index: int) -> dict[str, Any]:
    """Return how the trials of one row of a study ended: steps with their range, seeds, a lower bound of the steps."""
    steps, bound, status = study.steps[index], study.bound[index], study.status[index]
    hits, bounds = steps[np.isfinite(steps)], bound[np.isfinite(bound)]
    return {
        "steps": float(np.exp(np.log(hits).mean())) if len(hits) else np.nan,
        "low": float(hits.min()) if len(hits) else np.nan,
        "high": float(hits.max()) if len(hits) else np.nan,
        "seeds_reached": len(hits),
        "seeds": int((status != "").sum()),
        "steps_lower_bound": float(bounds.max()) if len(bounds) and not len(hits) else np.nan,
        "at_most": bool(len(hits)) and not study.measured[index].any(),
        "diverged": int((status == str(TrialStatus.DIVERGED)).sum()),
    }


def _marked(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return masks of the rows in each category of :data:`_MARKS`."""
    reached, bounded = table["steps"].notna(), table["steps_lower_bound"].notna()
    some, at_most = table["seeds_reached"] < table["seeds"], table["at_most"].astype(bool)
    edge = table["at_grid_edge"]
    lost = ~reached & ~bounded & (table["diverged"] > 0)
    known, best = reached & ~at_most, table["best"] & ~edge
    return dict(zip(_MARKS, (known & ~some, known & some, bounded, at_most, lost, best, edge), strict=True))


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the categories that occur, except the plain one, and of the seeds' ranges."""
    names = [name for name, rows in list(_marked(table).items())[1:] if rows.any()]
    entries = [style.mark(name, linestyle="", marker=_MARKS[name][0], **_MARKS[name][1]) for name in names]
    ranges = style.mark("range over seeds", linestyle="", marker="|", markersize=6, color="black")
    return [*entries, ranges] if (table["high"] > table["low"]).any() else entries


def frame(axes: Axes, table: pd.DataFrame) -> None:
    """Set the axes from the learning rates and steps of all optimizers; what diverged stands at the top."""
    steps = table[["low", "high"]].assign(bound=table["steps_lower_bound"])
    label = f"steps to {style.words(table['target'].iloc[0])}"
    style.log_axes(axes, table["lr"], steps, "learning rate", label, most=style.most_ticks(axes))


@figure(
    "learning_rate",
    of=Analysis,
    main=False,
    compute=compute,
    panel="optimizer",
    frame=frame,
    marks=marks,
    title="Steps against learning rate",
    caption="Optimizer steps to {target} (geometric mean over the seeds that reached it, black bars their range) "
    "against the learning rate, one line per batch size B in {example_unit}s, with the best options if others were "
    "tuned as well; "
    "both axes are logarithmic. A star is the best learning rate, with a red rim where it is the lowest or highest "
    "that was tried. Open circles: only some seeds reached the target. Small open triangles: none did in the steps "
    "that were run, so the true value is higher; those that point down: all were past it when first evaluated. Crosses "
    "at the top: every seed diverged.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a mark for every learning rate that says how its seeds ended, see :data:`_MARKS`, and label every batch size
    at the highest learning rate that reached the target."""
    bottom, top = axes.get_ylim()
    table = table.assign(y=table["steps"].fillna(table["steps_lower_bound"]))
    table["y"] = table["y"].where(~_marked(table)["diverged"], top**0.98 * bottom**0.02)
    colours, ends = style.shades(table["batch_size"]), []
    for batch_size, part in table.sort_values("lr").groupby("batch_size"):
        colour, reached = colours[batch_size], part[part["steps"].notna()]
        axes.plot(reached["lr"], reached["steps"], color=colour, linewidth=1.0, zorder=2)
        for index, (name, rows) in enumerate(_marked(part).items()):
            marker, look = _MARKS[name]
            axes.plot(part["lr"][rows], part["y"][rows], marker, **{"color": colour, "zorder": 3 + index} | look)
        # above the marks, which are larger than the range of most seeds
        axes.vlines(reached["lr"], reached["low"], reached["high"], color="black", linewidth=0.9, zorder=20)
        shown = part[part["steps"].notna() | part["steps_lower_bound"].notna()]
        if len(shown):
            edge = " at edge" if part["at_grid_edge"].any() else ""
            if "tuned" in part and part["tuned"].iloc[0]:
                edge += f", {part['tuned'].iloc[0].replace('=', ' ')}"
            last = (reached if len(reached) else shown).index[-1]  # a bound is no end of the curve
            ends.append((part["lr"][last], part["y"][last], f"B={batch_size}{edge}", colour))
    style.label_ends(axes, ends)


def tuned_rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield one row per batch size, learning rate and value of the first tuned option that is a number.

    ``outcome`` is one of ``reached`` (by every seed), ``reached by some seeds``, ``missed`` and ``diverged``; ``best``
    is true for the best pair.
    """
    for study, point in zip(answer.studies, answer.points, strict=True):
        option = _option(study)
        for row, tuned in enumerate(study.tuned) if option else ():
            seeds = ended(study, row)
            outcome = "missed" if seeds["diverged"] < seeds["seeds"] else "diverged"
            if seeds["seeds_reached"]:
                outcome = "reached" if seeds["seeds_reached"] == seeds["seeds"] else "reached by some seeds"
            value = float(options_of(tuned)[option])
            best = point.best_lr == study.lrs[row] and point.tuned == tuned
            where = {"batch_size": study.batch_size, "panel": f"{answer.group.optimizer}, B={study.batch_size}"}
            pair = {"option": option, "lr": study.lrs[row], "value": value}
            yield where | pair | {"outcome": outcome, "best": best}


def _option(study: Study) -> str:
    """Return the first tuned option with several values, all of them numbers; empty if there is none."""
    tuned = [options_of(text) for text in study.tuned]
    names = [name for name in (tuned[0] if tuned else ()) if all(is_number(each.get(name)) for each in tuned)]
    return next((name for name in names if len({each[name] for each in tuned}) > 1), "")


@figure(
    "tuned_option",
    of=Analysis,
    main=False,
    compute=of_each(tuned_rows, _TUNED),
    panel="panel",
    title="Learning rate against another tuned option",
    caption="Every pair of a learning rate and of another option that was tuned, at every batch size B in "
    "{example_unit}s, by how its trials ended with respect to {target}. The best pair has to lie inside.",
)
def draw_tuned(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a mark for every pair, and a star on the best."""
    option = str(table["option"].iloc[0])
    momentum = option == "momentum" and (table["value"] < 1).all()
    table = table.assign(y=1 - table["value"] if momentum else table["value"])
    style.log_scale(axes, "x", table["lr"], most=style.most_ticks(axes))
    style.axis_label(axes, "x", "learning rate")
    style.axis_label(axes, "y", "1 - momentum" if momentum else style.words(option))
    if (table["y"] > 0).all():
        style.log_scale(axes, "y", table["y"], sorted(set(table["y"])))
    parts = {name: table[table["outcome"] == name] for name in _OUTCOMES} | {"best": table[table["best"]]}
    for name, part in parts.items():
        if len(part):
            look = (_OUTCOMES | {"best": _STAR})[name] | {"linestyle": "", "zorder": 4 if name == "best" else 3}
            axes.plot(part["lr"], part["y"], **look)
            style.below(cast(Figure, axes.figure), [style.mark(name, **look)])
