r"""The trade-off between steps and examples: what a larger batch gains and what it costs, at one target or several.

McCandlish et al. (2018), figure 1 and equation 2.11; figure 5 on: a harder target moves the front outwards and the
critical batch size up.

Examples against steps where all batch sizes have one learning rate: three pieces in place of a hyperbola.

Source: arXiv 2601.05034, for the constant rate before the decay of WSD schedules.

.. math::
    E(S) = \frac{B_{-1}}{S - S_{min}} + B_0, \quad C (S - S_{opt})^2 + E_{min}, \quad A_1 S + A_0

from few steps to many, that is from large batches to small ones. Where the pieces meet, value and slope agree, which
leaves six parameters: the places of the two joints, :math:`S_{min}`, :math:`S_{opt}`, :math:`E_{min}` and C. The batch
size of least data is :math:`E_{min} / S_{opt}`, the smallest that reaches the loss at all :math:`A_1`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from analysis.estimate.definitions import HEADLINE
from analysis.estimate.result import Answer
from analysis.formatting import B_CRIT, share_in_percent
from analysis.present import style
from analysis.present.figures import along, figure, tidy
from analysis.present.figures.of_answers import fitted, measured, of_each
from analysis.present.findings import Analysis
from analysis.quantities import Array

_RESOLUTION = 120  # Points of a curve
_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "examples", "low", "high"]
_GOALS = ["panel", "goal", "kind", "batch_size", "steps", "examples"]
_ONE_RATE = ["optimizer", "kind", "batch_size", "steps", "examples", "residual"]
# Number of points that a fit of six parameters needs
LEAST = 7

_STARTS = (0.15, 0.4, 1.0)  # Distances of the joints from the optimum, in ln steps, from which the fit starts


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield rows of up to four kinds (column ``kind``): ``point`` per batch size; ``fit`` along the curve;
    ``hyperbola`` along the curve of exponent 1 if that looks different; ``critical`` at the critical batch size, if it
    was measured there."""
    found = [measured(point) for point in answer.points if point.reached]
    if answer.draws is not None:
        first, last = answer.draws.batch_sizes[[0, -1]]
        found += fitted(answer, np.geomspace(first, last, _RESOLUTION))
    examples, size = answer.examples_at_critical.value, answer.critical_batch_size
    if examples and size:
        found.append({"kind": "critical", "batch_size": size, "steps": examples / size})
    for row in found:
        kept = {name: row[name] for name in ("kind", "batch_size", "steps")}
        if row["kind"] == "fit":
            kept |= {"low": row["low"], "high": row["high"]}
        yield kept | {"examples": row["batch_size"] * row["steps"]}


compute = of_each(rows, _COLUMNS)


@figure(
    "pareto",
    of=Analysis,
    main=False,
    compute=compute,
    apart=True,
    title="Data against steps",
    caption="Data to {target} in {example_unit}s against the optimizer steps to it, each batch size at its best "
    "learning rate; both axes are logarithmic. Numbers at the points are batch sizes: small ones at the lower "
    "right, large ones at the upper left. Lines are the expected curves, bands "
    "their {percent} intervals at each batch size, thin ones the hyperbola where that looks "
    "different. A star is the critical batch size by definition {definition_in_words}. By least_product, "
    + B_CRIT
    + "; on the dotted lines through the stars steps x examples are the same.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the curve, with small batches at the lower right, large ones at the upper left, and a star at B_crit."""
    curved = table["kind"].isin(["fit", "hyperbola", "other"])
    marks, curves = table[~curved], table[curved]
    label, y_label = f"steps to {style.words(table['target'].iloc[0])}", f"data ({table['example_unit'].iloc[0]}s)"
    style.log_axes(axes, marks["steps"], marks["examples"], label, y_label, above=0.12)
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    looks = style.looks(table["optimizer"])
    constant: dict[str, Any] = {"color": style.GREY, "linestyle": ":", "linewidth": 0.7, "zorder": 1}
    for _, look, (points, fit, thin, star) in style.each(table, "point", "fit", "hyperbola", "critical"):
        band = [np.append(fit["low"], fit["high"][::-1]), np.append(fit["batch_size"], fit["batch_size"][::-1])]
        axes.fill(band[0], band[0] * band[1], color=look.colour, alpha=0.15, linewidth=0, zorder=1)
        axes.plot(thin["steps"], thin["examples"], color=look.colour, linewidth=0.5, zorder=2)
        axes.plot(fit["steps"], fit["examples"], color=look.colour, linestyle=look.dashes, zorder=2)
        axes.plot(points["steps"], points["examples"], look.marker, color=look.colour, zorder=3)
        marked: dict[str, Any] = {"color": look.colour, "markersize": 11, "markeredgecolor": "white", "zorder": 4}
        axes.plot(star["steps"], star["examples"], "*", **marked)
        for _, least in star[star["definition"] == HEADLINE].iterrows():
            axes.axline((least["steps"], least["examples"]), (least["steps"] / 2, 2 * least["examples"]), **constant)
    others = style.behind(axes, table, "steps", "examples")
    key = [] if others else [style.handle(name, look) for name, look in looks.items()]
    if (table["kind"] == "critical").any():
        key.append(style.mark("$B_{\\mathrm{crit}}$", marker="*", markersize=8, linestyle=""))
        if (table["definition"] == HEADLINE).all():
            key.append(style.mark("least steps x examples", linestyle=":", linewidth=0.7))
    if (table["kind"] == "hyperbola").any():
        key.append(style.mark("hyperbola", linewidth=0.5))
    if others:
        style.below(cast(Figure, axes.figure), [*key, *others])
    else:
        style.key(axes, key, marks["steps"], marks["examples"])
    points = table[table["kind"] == "point"].copy()
    groups = points.groupby("optimizer", sort=False)["batch_size"]
    sizes = points["batch_size"]
    points["middle"] = (sizes > groups.transform("min")) & (sizes < groups.transform("max"))
    labels = [
        (row.steps, row.examples, f"{row.batch_size:g}", looks[row.optimizer].colour)
        for row in points.sort_values("middle", kind="stable").itertuples()
    ]
    both = ["steps", "examples"]
    style.label_points(axes, labels, marks[marks["kind"] != "beyond"][both].to_numpy(), curves[both].to_numpy())


def compute_goals(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows as :func:`compute` does, with the value of the target as
    ``goal`` and the optimizer as ``panel``; no rows for an optimizer with a single target."""
    tables, parts = [], [(a.group.sweep, a.group.workload, a.target.metric, a.group.optimizer) for a in answers]
    told = [len(set(column)) > 1 for column in list(zip(*parts, strict=True))[:-1]] + [True]
    for answer, own in zip(answers, parts, strict=True):
        panel = ", ".join(part for part, shown in zip(own, told, strict=True) if shown)
        tables.append(compute([answer]).assign(panel=panel, goal=answer.target.value))
    table = pd.concat(tables) if tables else tidy([], _GOALS)
    several = table[table["kind"] == "point"].groupby("panel")["goal"].nunique()
    table = table[table["panel"].isin(several.index[several > 1])].reset_index(drop=True)
    return table[[*_GOALS, *(name for name in table if name not in _GOALS)]]


@figure(
    "pareto_goals",
    of=Analysis,
    main=False,
    compute=compute_goals,
    panel="panel",
    whole=True,
    title="Data against steps at several targets",
    caption="Data in {example_unit}s against optimizer steps, a front for every target, darker the harder it is or the "
    "larger its value; each batch size at its best learning rate, both axes logarithmic. Lines are the expected "
    "curves, stars the critical batch sizes by definition {definition_in_words}.",
)
def draw_goals(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a front for every target in shades of one colour map."""
    unit, marks = table["example_unit"].iloc[0], table[table["kind"].isin(["point", "critical"])]
    style.log_axes(axes, marks["steps"], marks["examples"], "steps to target", f"data ({unit}s)")
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    goals = dict(zip(table["goal"], table["target"], strict=True))
    key = []
    for goal, colour in style.shades_of_targets([*goals], str(table["target"].iloc[0])).items():
        own = table[table["goal"] == goal]
        points, fit, star = (own[own["kind"] == kind] for kind in ("point", "fit", "critical"))
        axes.plot(fit["steps"], fit["examples"], color=colour, zorder=2)
        axes.plot(points["steps"], points["examples"], "o", color=colour, markersize=3.5, zorder=3)
        axes.plot(star["steps"], star["examples"], "*", color=colour, markersize=10, markeredgecolor="white", zorder=4)
        key.append(style.mark(style.words(goals[goal]), color=colour, marker="o", markersize=3.5))
    style.below(cast(Figure, axes.figure), key)


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
        below, first, last, optimum, least, bend = logs
        opt = math.exp(optimum)
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


def one_rate_rows(answer: Answer) -> Iterator[dict[str, Any]]:
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
    compute=of_each(one_rate_rows, _ONE_RATE),
    panel="optimizer",
    title="Data against steps at one learning rate",
    caption="Data to {target} in {example_unit}s against optimizer steps, where all batch sizes have one learning "
    "rate; both axes are logarithmic, numbers at the points are batch sizes. Solid: three pieces (inverse, parabola, "
    "line), with a star at the fewest examples; dashed: the hyperbola. The key has their residuals.",
)
def draw_one_rate(axes: Axes, table: pd.DataFrame) -> None:
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
