"""The crossing of a target by a loop over one evaluation curve, number by number."""

import math
from collections.abc import Sequence

from cbs.trial.target import Target

NEARBY = 1.2


def crossing(target: Target, steps: Sequence[float], values: Sequence[float]) -> float | None:
    """Step at which a line through the evaluations up to the first that is better than the target meets it."""
    index = next((index for index, value in enumerate(values) if target.reached(value)), None)
    if index is None:
        return None
    if index == 0 or steps[index - 1] <= 0 or not math.isfinite(values[index - 1]):
        return float(steps[index])
    used = [index - 1, index]
    used += [
        place
        for place in range(index - 1)
        if steps[place] > 0 and steps[place] * NEARBY >= steps[index] and math.isfinite(values[place])
    ]
    x = [math.log(steps[place]) for place in used]
    y = [values[place] - target.value for place in used]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
    if slope == 0 or (slope < 0) != (target.direction == "below"):
        return math.exp(x[0] + y[0] / (y[0] - y[1]) * (x[1] - x[0]))
    return math.exp(min(max(middle - height / slope, min(x)), x[1]))
