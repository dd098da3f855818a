r"""Examples against steps where all batch sizes have one learning rate: three pieces in place of a hyperbola.

Source: arXiv 2601.05034, for the constant rate before the decay of WSD schedules.

.. math::
    E(S) = \frac{B_{-1}}{S - S_{min}} + B_0, \quad C (S - S_{opt})^2 + E_{min}, \quad A_1 S + A_0

from few steps to many, that is from large batches to small ones. Where the pieces meet, value and slope agree, which
leaves six parameters: the places of the two joints, :math:`S_{min}`, :math:`S_{opt}`, :math:`E_{min}` and C. The batch
size of least data is :math:`E_{min} / S_{opt}`, the smallest that reaches the loss at all :math:`A_1`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.optimize import least_squares

from analysis.arrays import Array
from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.phrases import share_in_percent
from analysis.present import style
from analysis.present.figures import along, figure
from analysis.present.figures.of_answers import of_each

_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "examples", "residual"]

LEAST = 7
"""Number of points that a fit of six parameters needs."""

_STARTS = (0.15, 0.4, 1.0)
"""Distances of the joints from the optimum, in ln steps, from which the fit starts."""


@dataclass(frozen=True)
class ThreePieces:
    """The fitted curve.

    Attributes:
        min_steps, best_steps: S_min and S_opt.
        joints: steps at which the pieces meet.
        min_examples: E_min.
        curvature: C.
    """

    min_steps: float
    best_steps: float
    joints: tuple[float, float]
    min_examples: float
    curvature: float

    @property
    def best_batch_size(self) -> float:
        return self.min_examples / self.best_steps

    @property
    def min_batch_size(self) -> float:
        """A_1, the slope of the last piece."""
        return 2 * self.curvature * (self.joints[1] - self.best_steps)

    def examples(self, steps: Array) -> Array:
        """Return E at every number of steps; all must be above S_min."""
        first, last = self.joints

        def middle(at: Array | float) -> Array | float:
            return self.curvature * (at - self.best_steps) ** 2 + self.min_examples

        slope = 2 * self.curvature * (self.best_steps - first)
        reach = first - self.min_steps
        many = middle(last) + self.min_batch_size * (steps - last)
        few = middle(first) + slope * reach * (reach / np.maximum(steps - self.min_steps, 1e-9 * reach) - 1)
        return np.where(steps < first, few, np.where(steps > last, many, middle(steps)))


def three_pieces(steps: Array, examples: Array) -> ThreePieces | None:
    """Fit the curve to points by least squares in ln E; ``None`` below :data:`LEAST` points."""
    if len(steps) < LEAST:
        return None
    best = steps[np.argmin(examples)]

    def curve(logs: Array) -> ThreePieces:
        below, first, last, place, least, bend = logs
        opt = math.exp(place)
        joint = opt * math.exp(-math.exp(first))
        low = min(joint * math.exp(-math.exp(below)), 0.999 * float(steps.min()))
        return ThreePieces(low, opt, (joint, opt * math.exp(math.exp(last))), math.exp(least), math.exp(bend))

    def misses(logs: Array) -> Array:
        return np.asarray(np.log(curve(logs).examples(steps) / examples))

    fits = []
    for width in _STARTS:
        bend = math.log(examples.min() / best**2)
        start = [0.0, math.log(width), math.log(width), math.log(best), math.log(examples.min()), bend]
        fits.append(least_squares(misses, start, bounds=(np.array(start) - 6, np.array(start) + 6)))
    return curve(min(fits, key=lambda fit: fit.cost).x)


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield rows of four kinds: ``point`` per batch size; ``pieces`` and ``hyperbola`` along the two curves, with
    their root mean square ``residual`` in ln steps at the measured batch sizes; ``best`` at E_min of the pieces.

    Only optimizers whose trials all have the same learning rate, and enough points to fit the pieces, have rows.
    """
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
    main=False,
    compute=of_each(rows, _COLUMNS),
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
