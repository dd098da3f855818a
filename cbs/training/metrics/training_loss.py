r"""The training loss as it is now: a straight line in the logarithm of the examples through the losses of the steps.

A mean over steps is late by its window; the line is read at its end, so it is not. Weights fall off as a power of the
examples seen, :math:`w = (e/E)^p`, which is the same window at every batch size. What is left is, for a loss
:math:`L(\ln e)`, of second order: after many steps the line ends :math:`L''/(p+1)^2` below it (the straight line fitted
to a parabola under these weights), .008 :math:`L''` at :math:`p = 10`. It is of the batches trained on, so it scatters
more the smaller they are, and sees nothing of overfitting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cbs.compute import seeding
from cbs.training.metrics import METRICS
from cbs.training.metrics.base import Metric, MetricInputs

POWER = 10.0
"""p: half of the weight lies in the last 6 % of the examples."""


EXAMPLES = 64
"""Examples whose mean loss stands for that of training before the first step."""


@METRICS.register("training_loss")
class TrainingLoss(Metric):
    """Exponentially weighted mean of the training loss with its lag corrected: a plain one after the first step, and
    before it the mean over :data:`EXAMPLES` examples."""

    def __init__(self, inputs: MetricInputs) -> None:
        self._inputs = inputs
        self._seen = 0.0
        self._sums = np.zeros(5)
        """Of w, w x, w x^2, w y and w x y; x = ln(e/E) of the weights that a loss y is of, E the examples seen."""

    def observe(self, examples: np.ndarray, losses: np.ndarray) -> None:
        for now, loss in zip(examples.tolist(), losses.tolist(), strict=True):
            before = self._seen
            if before > 0:
                self._move(math.log(now / before))
            # the loss of a step is of the weights before it; those before the first have seen nothing, and stand at 1
            x = math.log(max(before, 1.0) / now)
            weight = math.exp(POWER * x)
            self._sums += weight * np.array([1.0, x, x * x, loss, x * loss])
            self._seen = float(now)

    def _move(self, shift: float) -> None:
        """Let the examples seen grow by a factor of ``exp(shift)``: every x is that much less."""
        w, wx, wxx, wy, wxy = self._sums
        moved = np.array([w, wx - shift * w, wxx - 2 * shift * wx + shift * shift * w, wy, wxy - shift * wy])
        self._sums = math.exp(-POWER * shift) * moved

    def value(self) -> float:
        w, wx, wxx, wy, wxy = (float(part) for part in self._sums)
        if w <= 0:
            with seeding.seeded(0, "training loss"):
                batch = self._inputs.workload.training_stream(seeding.generator(0, "training loss")).next(EXAMPLES)
                losses = self._inputs.workload.example_losses(self._inputs.model, self._inputs.to_device(batch))
            return float(losses.double().mean())
        spread = w * wxx - wx * wx
        if spread <= 1e-9 * w * wxx:
            return wy / w
        return (wxx * wy - wx * wxy) / spread

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen, "sums": self._sums.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seen, self._sums = float(state["seen"]), np.array(state["sums"], dtype=float)
