"""The cost of a larger batch at a budget: as loss, and as examples, from the curves of runs or from several budgets.

At the budget E, the larger batch has the loss that the smaller one has after E' examples, each at its best learning
rate. The fraction of the data that it costs is 1 - E'/E, and for the same loss the smaller batch takes (E'/B)/(E/B')
steps for every step of the larger one, which is B'/B if nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity
from analysis.questions.budget.reading import Spent

_EDGE = "a best learning rate lies at the edge of the grid"


@dataclass(frozen=True, kw_only=True)
class SizeDoubling:
    """From one batch size to the next larger one.

    Attributes:
        batch_size, larger: the two batch sizes in examples.
        loss: by how much the loss of the larger one is worse, in the unit of the metric; negative if it is better.
        data: fraction of the examples that the larger one costs: with so many fewer, the smaller one is as good;
            negative if the smaller one needs more. No value if no curve shows it.
        steps: steps of the smaller one for every step of the larger one at the same loss; no value if ``data`` has
            none.
        remark: why there is no value; otherwise empty.
    """

    batch_size: int
    larger: int
    loss: Quantity
    data: Quantity = UNKNOWN
    steps: Quantity = UNKNOWN
    remark: str = ""


def doublings(entry: Spent, others: Sequence[Spent], confidence: float) -> tuple[SizeDoubling, ...]:
    """Return the cost of going from every batch size to the next one; ``others`` are the same optimizer at other
    budgets, for runs without curves and decaying learning rates."""
    found = entry.losses
    curves = [entry.tuned_curve(study) for study in entry.studies] if entry.constant else []
    source = "no curve of the runs goes there"
    if not any(len(examples) > 1 for examples, _ in curves):
        curves = [_over_budgets(size, [*others, entry]) for size in found.sizes]
        source = "no smaller budget of these batch sizes goes there: a second one has to be run"
    made = []
    for place in range(len(entry.studies) - 1):
        small, large = (entry.studies[place + step].batch_size for step in (0, 1))
        if found.edges[place : place + 2].any():
            made.append(SizeDoubling(batch_size=small, larger=large, loss=UNKNOWN, remark=_EDGE))
            continue
        rows = np.concatenate([np.diff(found.values)[[place]], np.diff(found.drawn)[:, place]])
        logs = np.array([_log_ratio(curves[place], curves[place + 1], entry.budget, worse) for worse in rows])
        ratio = Quantity.open_ended(logs, confidence) if np.isfinite(logs[0]) else UNKNOWN
        data = ratio.mapped(lambda log: float(1 - np.exp(log)), falling=True)
        made.append(
            SizeDoubling(
                batch_size=small,
                larger=large,
                loss=Quantity.of_draws(rows, confidence),
                data=data,
                steps=data.mapped(lambda share: 1 - share, falling=True).times(large / small),
                remark=source if data.value is None else "",
            )
        )
    return tuple(made)


def _over_budgets(size: float, entries: Sequence[Spent]) -> tuple[Array, Array]:
    """Return the budgets at which a batch size was run, and its losses there."""
    points = {
        entry.budget: float(entry.losses.values[entry.losses.sizes == size][0])
        for entry in entries
        if size in entry.losses.sizes
    }
    budgets = sorted(points)
    return np.array(budgets), np.minimum.accumulate([points[budget] for budget in budgets])


def _log_ratio(small: tuple[Array, Array], large: tuple[Array, Array], budget: float, worse: float) -> float:
    """Return ln of E'/E at which the losses are alike, along the curve of the smaller batch if the larger one is worse,
    otherwise reversed along that of the larger one; infinite beyond the curves."""
    sign, (examples, losses) = (1.0, small) if worse >= 0 else (-1.0, large)
    here = examples <= budget * 1.02
    examples, losses = examples[here], losses[here]
    if len(examples) < 2:
        return -sign * np.inf
    at = losses[-1] + abs(worse)
    if at > losses[0]:
        return -sign * np.inf
    # losses decrease along the curve
    log = np.interp(-at, -losses, np.log(examples))
    return float(sign * (log - np.log(examples[-1])))
