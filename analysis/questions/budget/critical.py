r"""The largest batch size within a margin at a budget, compared with its prediction from the critical batch size.

On the hyperbola of McCandlish et al. (2018) a run of E examples at batch size B achieves what :math:`E_\mathrm{eff} =
E/(1 + B/B_\mathrm{crit})` examples achieve in the limit of small batches. Its loss therefore lies above that of another
batch size by the slope of the curve in ln E times the difference of ln E_eff:

.. math:: L(B) - L(B_0) = s \ln\frac{1 + B/B_\mathrm{crit}}{1 + B_0/B_\mathrm{crit}},\quad s = -dL/d\ln E.

The critical batch size is that of the hyperbola through the steps to the hardest loss that every batch size had reached
when the examples were spent, as ``cbs fit`` estimates it; where it is beyond the batch sizes, it is extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import Reading, estimates
from analysis.estimate.studies import easier_by_rounding, studies
from analysis.quantities import UNKNOWN, Array, Quantity
from analysis.questions.budget.reading import Spent
from analysis.read.results import Results

_FEWEST = 4
"""Smallest number of points of a curve from which a slope is taken."""

_BACK = 2.0
"""The slope is taken over this factor of examples at the end of the curve."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Both results for one optimizer at one budget.

    Attributes:
        target: value of the metric for which the critical batch size holds.
        critical_batch_size: critical batch size of the hyperbola, in examples.
        slope: decrease of the loss per unit of ln E at the best batch size, in the unit of the metric.
        predicted: the largest batch size within the margin that these two predict.
        measured: the measured one.
        holds: ``holds`` if the intervals overlap, ``does not hold`` if they do not, ``cannot be told`` if one is
            unknown.
        remark: why something is unknown, or the verdict on the critical batch size; otherwise empty.
    """

    target: float | None = None
    critical_batch_size: Quantity = UNKNOWN
    slope: float | None = None
    predicted: Quantity = UNKNOWN
    measured: Quantity = UNKNOWN
    holds: str = "cannot be told"
    remark: str = ""


def relation(
    results: Results, entry: Spent, best: float | None, measured: Quantity, margin: float, config: AnalysisConfig
) -> Relation:
    """Return prediction and measurement side by side; ``best`` is the batch size with the smallest loss."""
    found = Relation(measured=measured)
    if not entry.constant:
        return replace(found, remark="learning rates decay, so no curve passes a loss as it would have")
    if best is None or len(entry.studies) < 2:
        return replace(found, remark="there are too few batch sizes")
    curve = entry.curves[int(np.flatnonzero(entry.losses.sizes == best)[0])]
    if len(curve[0]) < _FEWEST:
        return replace(found, remark="the runs have no curves")
    hardest = max(float(np.nanmin(np.nanmean(_whole(losses), axis=1))) for losses in entry.tables)
    target = replace(entry.group.target, value=easier_by_rounding(entry.sign * hardest, entry.sign > 0, 4))
    trial, step, value = (results.evaluations[name].to_numpy() for name in ("trial", "step", "value"))
    steps = target.crossings(trial, step, value, len(results.trials))
    found = replace(found, target=target.value)
    if np.any(steps <= 0):
        return replace(found, remark="a run starts at a loss as low as it ends with")
    apart = target.apart(trial, step, value, len(results.trials))
    evaluations = [trial, step, value]
    read = Reading(target=target, studies=list(studies(entry.group, entry.rows, target, steps, apart, evaluations)))
    (answer,) = estimates(entry.group, [read], config)
    critical = answer.hyperbola.critical_batch_size if answer.hyperbola else UNKNOWN
    slope = _slope(*curve)
    said = "" if str(answer.verdict) == "ok" else str(answer.verdict)
    found = replace(found, critical_batch_size=critical, slope=slope, remark=said)
    if slope is None:
        return replace(found, remark=said or "the curve is too short for its slope")
    if critical.value is None:
        return replace(found, remark=said or "no critical batch size")
    # the predicted batch size increases with the critical batch size
    predicted = critical.mapped(lambda size: _within(size, best, margin / slope))
    return replace(found, predicted=predicted, holds=_holds(predicted, measured))


def _whole(losses: Array) -> Array:
    """Return the losses without learning rates at which a seed failed, if there are others."""
    kept = np.isfinite(losses).all(axis=1)
    return losses[kept] if kept.any() else losses[np.isfinite(losses).any(axis=1)]


def _slope(examples: Array, losses: Array) -> float | None:
    """Return the decrease of the loss per unit of ln E at the end of a curve."""
    if len(examples) < 3 or examples[0] > examples[-1] / _BACK:
        return None
    logs = np.log(examples)
    fall = float(np.interp(logs[-1] - math.log(_BACK), logs, losses) - losses[-1]) / math.log(_BACK)
    return fall if fall > 0 else None


def _within(critical: float, best: float, nats: float) -> float:
    """Return the batch size whose effective examples are fewer than those of ``best`` by ``nats`` in ln."""
    return critical * (math.exp(min(nats, 700.0)) * (1 + best / critical) - 1)


def _holds(predicted: Quantity, measured: Quantity) -> str:
    (a, b), (c, d) = predicted.interval, measured.interval
    if None in (a, c) and None in (b, d):
        return "cannot be told"
    apart = (b is not None and c is not None and b < c) or (d is not None and a is not None and d < a)
    return "does not hold" if apart else "holds"
