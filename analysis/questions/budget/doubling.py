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
        data = _share((curves[place], curves[place + 1]), entry.budget, rows, confidence)
        made.append(
            SizeDoubling(
                batch_size=small,
                larger=large,
                loss=Quantity.of_draws(rows, confidence),
                data=data,
                steps=_times(data, large / small),
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


def _share(
    pair: tuple[tuple[Array, Array], tuple[Array, Array]], budget: float, worse: Array, confidence: float
) -> Quantity:
    """Return ``1 - E'/E`` for the first of ``worse`` with the interval of the others; an end beyond the curves is
    open."""
    logs = np.array([_log_ratio(pair, budget, each) for each in worse])
    if not np.isfinite(logs[0]):
        return UNKNOWN
    values = 1 - np.exp(logs)
    if len(values) == 1:
        return Quantity(float(values[0]))
    tail = 0.5 - confidence / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail], method="nearest")
    # beyond the curves the ratio is 0 or infinite
    return Quantity(float(values[0]), (float(low) if np.isfinite(low) else None, float(high) if high < 1 else None))


def _log_ratio(pair: tuple[tuple[Array, Array], tuple[Array, Array]], budget: float, worse: float) -> float:
    """Return ln E'/E, along the curve of the smaller batch if the larger one is worse, otherwise reversed along that of
    the larger one; infinite beyond the curves."""
    sign, (examples, losses) = (1.0, pair[0]) if worse >= 0 else (-1.0, pair[1])
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


def _times(data: Quantity, times: float) -> Quantity:
    value, low, high = (None if each is None else (1 - each) * times for each in (data.value, *data.interval))
    return Quantity(value, (high, low))
