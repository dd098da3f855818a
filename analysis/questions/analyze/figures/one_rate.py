"""Examples against steps where all batch sizes have one learning rate: three pieces in place of a hyperbola.

Source: arXiv 2601.05034, for the constant rate before the decay of WSD schedules; see
:mod:`analysis.estimate.laws.three_pieces`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.findings import Analysis
from analysis.estimate.laws.three_pieces import three_pieces
from analysis.estimate.result import Answer
from analysis.phrases import share_in_percent
from analysis.present import style
from analysis.present.figures import about, along, figure, tidy

_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "examples", "residual"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows of four kinds: ``point`` per batch size; ``pieces`` and ``hyperbola`` along the two curves, with
    their root mean square ``residual`` in ln steps at the measured batch sizes; ``best`` at E_min of the pieces.

    Only optimizers whose trials all have the same learning rate, and enough points to fit the pieces, have rows.
    """
    rows = [about(answer) | row for answer in answers for row in _rows(answer)]
    return tidy(rows, _COLUMNS)


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    rates = np.unique(np.concatenate([study.lrs for study in answer.studies]))
    points = [(point.batch_size, point.steps_to_target) for point in answer.points if point.steps_to_target]
    if len(rates) > 1 or answer.hyperbola is None or len(points) < 2:
        return
    sizes, steps = np.array(points, dtype=float).T
    pieces = three_pieces(steps, sizes * steps)
    if pieces is None:
        return
    yield from along("point", batch_size=sizes, steps=steps, examples=sizes * steps)
    fine = np.geomspace(0.7 * steps.min(), 1.4 * steps.max(), 400)
    curves = {"pieces": (fine, pieces.examples(fine))}
    excess = fine / (answer.hyperbola.min_steps.value or math.inf) - 1
    above = excess > 0
    curves["hyperbola"] = fine[above], (answer.hyperbola.critical_batch_size.value or math.nan) * (fine / excess)[above]
    for kind, (at, examples) in curves.items():
        log_sizes, log_steps = np.log(examples / at)[::-1], np.log(at)[::-1]  # batch sizes fall along the curve
        misses = np.interp(np.log(sizes), log_sizes, log_steps) - np.log(steps)
        inside = (at >= steps.min()) & (at <= steps.max())
        for row in along(kind, steps=at[inside], examples=examples[inside]):
            yield row | {"residual": float(np.sqrt(np.mean(misses**2)))}
    yield {"kind": "best", "batch_size": pieces.best_batch_size} | {
        "steps": pieces.best_steps, "examples": pieces.min_examples,
    }  # fmt: skip


@figure(
    "one_rate",
    of=Analysis,
    compute=compute,
    panel="optimizer",
    title="Data against steps at one learning rate",
    caption="Data to {target} in {example_unit}s against optimizer steps, where all batch sizes have one learning "
    "rate; both axes are logarithmic, numbers at the points are batch sizes. Solid: three pieces (inverse, parabola, "
    "line), with a star at the fewest examples; dashed: the hyperbola. The key has their residuals.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw points with their batch sizes, both curves, and a star at the fewest examples."""
    points = table[table["kind"] == "point"]
    unit, target = table["example_unit"].iloc[0], style.words(table["target"].iloc[0])
    label = f"data ({unit}s)"
    style.log_axes(axes, points["steps"], points["examples"], f"steps to {target}", label, above=0.2)
    key = []
    for kind, words, dashes, colour in (("pieces", "three pieces", "-", style.COLOURS[0]),
                                        ("hyperbola", "hyperbola", "--", style.COLOURS[1])):  # fmt: skip
        part = table[table["kind"] == kind]
        axes.plot(part["steps"], part["examples"], dashes, color=colour, linewidth=1.1, zorder=2)
        words += f", rms {share_in_percent(part['residual'].iloc[0])}"
        key.append(style.mark(words, color=colour, linestyle=dashes))
    axes.plot(points["steps"], points["examples"], "o", color="black", markersize=3.5, zorder=3)
    best = table[table["kind"] == "best"]
    axes.plot(best["steps"], best["examples"], "*", color=style.COLOURS[0], markersize=10, markeredgecolor="white",
              zorder=4)  # fmt: skip
    key.append(style.mark(f"fewest examples, B={best['batch_size'].iloc[0]:.3g}", marker="*", linestyle=""))
    style.key(axes, key, points["steps"], points["examples"])
    both = ["steps", "examples"]
    labels = [(row.steps, row.examples, f"{row.batch_size:g}", "black") for row in points.itertuples()]
    style.label_points(axes, labels, points[both].to_numpy(), table.loc[table["kind"] == "pieces", both].to_numpy())
