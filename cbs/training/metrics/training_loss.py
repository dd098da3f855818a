r"""The current training loss: a line fitted to the losses of the steps over the logarithm of the examples, at its end.

A mean over steps lags behind by its window; the end of a fitted line does not. Weights decay as a power of the examples
seen, :math:`w = (e/E)^p`, which is the same window at every batch size. For a loss :math:`L(\ln e)` the remaining error
is of second order: after many steps the end of the line is :math:`L''/(p+1)^2` below the loss (the line fitted to a
parabola with these weights), .008 :math:`L''` at :math:`p = 10`. The losses are those of the training batches, so the
value is noisier for smaller batches and does not show overfitting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cbs.compute import seeding
from cbs.training.metrics import METRICS, Metric, MetricInputs

POWER = 10.0
"""Exponent p: half of the weight lies in the last 6 % of the examples."""


EXAMPLES = 64
"""Number of examples whose mean loss is the value before the first step."""


@METRICS.register("training_loss")
class TrainingLoss(Metric):
    """Weighted mean of the training loss with its lag corrected by a linear fit.

    After the first step, a plain mean; before it, the mean loss over :data:`EXAMPLES` examples.
    """

    def __init__(self, inputs: MetricInputs) -> None:
        self._inputs = inputs
        self._seen = 0.0
        self._sums = np.zeros(5)
        """Sums of w, w x, w x^2, w y and w x y; x = ln(e/E) with e the examples behind the weights of a loss y, and E
        all examples seen."""

    def observe(self, examples: np.ndarray, losses: np.ndarray) -> None:
        for now, loss in zip(examples.tolist(), losses.tolist(), strict=True):
            before = self._seen
            if before > 0:
                self._move(math.log(now / before))
            # The loss of a step belongs to the weights before it; before the first step these count as e = 1.
            x = math.log(max(before, 1.0) / now)
            weight = math.exp(POWER * x)
            self._sums += weight * np.array([1.0, x, x * x, loss, x * loss])
            self._seen = float(now)

    def _move(self, shift: float) -> None:
        """Increase the number of examples seen by the factor ``exp(shift)``, which lowers every x by ``shift``."""
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
        # All losses lie at one place up to rounding, where no line is defined.
        if spread <= 1e-9 * w * wxx:
            return wy / w
        return (wxx * wy - wx * wxy) / spread

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen, "sums": self._sums.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seen, self._sums = float(state["seen"]), np.array(state["sums"], dtype=float)
