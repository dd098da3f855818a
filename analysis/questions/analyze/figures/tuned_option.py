"""Learning rates against an option tuned beside them, each pair marked by how its trials ended.

Shallue et al. (2019), the check of the search space: the best trial has to lie inside the region that was searched.
Momentum is drawn as 1 - momentum on a log axis, as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study, options_of
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.questions.analyze.figures.learning_rate import ended
from cbs.registry.domains import is_number

_COLUMNS = ["panel", "optimizer", "batch_size", "option", "lr", "value", "outcome", "best"]
_MARKS: dict[str, dict[str, Any]] = {
    "reached": {"marker": "o", "color": style.COLOURS[0]},
    "reached by some seeds": {"marker": "o", "color": style.COLOURS[0], "markerfacecolor": "white"},
    "missed": {"marker": "^", "color": style.COLOURS[4], "markerfacecolor": "white"},
    "diverged": {"marker": "x", "color": style.COLOURS[1]},
}
_BEST: dict[str, Any] = {"marker": "*", "markersize": 9, "color": "black", "markeredgecolor": "white"}


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer, batch size, learning rate and value of the first tuned option that is a number.

    ``outcome`` is one of ``reached`` (by every seed), ``reached by some seeds``, ``missed`` and ``diverged``; ``best``
    is true for the best pair.
    """
    return tidy([row for answer in answers for row in _rows(answer)], _COLUMNS)


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    about = {"target": str(answer.target), "example_unit": answer.group.example_unit}
    for study, point in zip(answer.studies, answer.points, strict=True):
        option = _option(study)
        for row, tuned in enumerate(study.tuned) if option else ():
            seeds = ended(study, row)
            outcome = "missed" if seeds["diverged"] < seeds["seeds"] else "diverged"
            if seeds["seeds_reached"]:
                outcome = "reached" if seeds["seeds_reached"] == seeds["seeds"] else "reached by some seeds"
            value = float(options_of(tuned)[option])
            best = point.best_lr == study.lrs[row] and point.tuned == tuned
            where = {"optimizer": answer.group.optimizer, "batch_size": study.batch_size, "option": option}
            panel = f"{answer.group.optimizer}, B={study.batch_size}"
            yield (
                where | {"panel": panel, "lr": study.lrs[row], "value": value, "outcome": outcome, "best": best} | about
            )


def _option(study: Study) -> str:
    """Return the first tuned option with several values, all of them numbers; empty if there is none."""
    tuned = [options_of(text) for text in study.tuned]
    names = [name for name in (tuned[0] if tuned else ()) if all(is_number(each.get(name)) for each in tuned)]
    return next((name for name in names if len({each[name] for each in tuned}) > 1), "")


@figure(
    "tuned_option",
    of=Analysis,
    compute=compute,
    panel="panel",
    title="Learning rate against another tuned option",
    caption="Every pair of a learning rate and of another option that was tuned, at every batch size B in "
    "{example_unit}s, by how its trials ended with respect to {target}. The best pair has to lie inside.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a mark for every pair, and a star on the best."""
    option = str(table["option"].iloc[0])
    momentum = option == "momentum" and (table["value"] < 1).all()
    table = table.assign(y=1 - table["value"] if momentum else table["value"])
    style.log_scale(axes, "x", table["lr"], most=style.most_ticks(axes))
    style.axis_label(axes, "x", "learning rate")
    style.axis_label(axes, "y", "1 - momentum" if momentum else style.words(option))
    if (table["y"] > 0).all():
        style.log_scale(axes, "y", table["y"], sorted(set(table["y"])))
    parts = {name: table[table["outcome"] == name] for name in _MARKS} | {"best": table[table["best"]]}
    for name, part in parts.items():
        if len(part):
            look = (_MARKS | {"best": _BEST})[name] | {"linestyle": "", "zorder": 4 if name == "best" else 3}
            axes.plot(part["lr"], part["y"], **look)
            style.below(cast(Figure, axes.figure), [style.mark(name, **look)])
