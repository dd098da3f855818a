"""The norm of the gradient over a fixed set of training examples: how far a trial is from a stationary point.

Sato and Iiduka (2023, arXiv 2307.13831) count the steps until the norm of the full gradient is below epsilon. Here a
fixed set of n examples replaces the full data. Its sampling error is at most about
:math:`\\sqrt{\\mathrm{tr}\\,\\Sigma / n}`, the value that remains where the gradient over all data vanishes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.training.metrics import METRICS, FixedExamples, Metric, MetricInputs

EXAMPLES, PASS = 512, 128
"""Number of examples in the fixed set, and in one pass where no limit is configured."""


@METRICS.register("gradient_norm")
class GradientNorm(Metric):
    """Euclidean norm of the gradient of the mean loss over :data:`EXAMPLES` examples, the same in every trial."""

    unit = ""

    def __init__(self, inputs: MetricInputs) -> None:
        if not inputs.one_process:
            raise ConfigError("metric 'gradient_norm' needs whole tensors in one process")
        self._inputs, self._examples = inputs, FixedExamples(inputs, EXAMPLES, PASS, "gradient norm")
        self._parameters = [part for part in inputs.model.parameters() if part.requires_grad]

    def value(self) -> float:
        sums: list[Tensor] = [torch.zeros_like(part) for part in self._parameters]
        for part in self._examples:
            with torch.enable_grad(), self._inputs.beside():
                loss = self._inputs.workload.example_losses(self._inputs.model, part).sum()
                gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient.to_dense() if gradient.is_sparse else gradient
        return math.sqrt(sum(float(total.abs().double().square().sum()) for total in sums)) / self._examples.count
