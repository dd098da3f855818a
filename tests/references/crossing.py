"""The crossing of a target by a loop over one evaluation curve, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cbs.trial.target import Target


def crossing(target: Target, steps: Sequence[float], values: Sequence[float]) -> float | None:
    """First step at which the curve is better than the target, linear in log step from the evaluation before."""
    for index, value in enumerate(values):
        if not target.reached(value):
            continue
        if index == 0 or steps[index - 1] <= 0 or not math.isfinite(values[index - 1]):
            return float(steps[index])
        before, after = math.log(steps[index - 1]), math.log(steps[index])
        share = (values[index - 1] - target.value) / (values[index - 1] - value)
        return math.exp(before + share * (after - before))
    return None
