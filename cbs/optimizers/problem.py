"""What an optimizer is given that evaluates the model itself: second-order methods need more than gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cbs.optimizers.contract import CheckedOptimizer

Batch = Any
"""A tensor, or a tuple or dictionary of tensors, whose first dimension counts examples."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, and its loss in two halves.

    The mean over the batch of ``output_losses(outputs(model, batch), batch)`` is the training loss.

    Attributes:
        model: the model whose parameters are optimized.
        outputs: ``outputs(model, batch)``, shape ``[examples, ...]``; the loss reads the model through them alone.
        output_losses: ``output_losses(outputs, batch)``, loss of every example, shape ``[examples]``.
        curvature_sample: ``curvature_sample(outputs, batch, generator)``, shape of ``outputs``: for every example a
            random vector z, independent of the others, with mean 0 and E[z z'] the Hessian of its loss in its outputs.
            Pulled back through the model, z has the generalised Gauss-Newton matrix as its covariance. Where the loss
            is a negative log-likelihood, its gradient at targets drawn from the model's own distribution is such a z.
        seed: of whatever the optimizer draws.
        micro_batch_size: most examples in a forward pass, or ``None``.
    """

    model: nn.Module
    outputs: Callable[[nn.Module, Batch], Tensor]
    output_losses: Callable[[Tensor, Batch], Tensor]
    curvature_sample: Callable[[Tensor, Batch, torch.Generator], Tensor]
    seed: int = 0
    micro_batch_size: int | None = None


class ProblemOptimizer(CheckedOptimizer):
    """An optimizer that evaluates the model on the examples of the step.

    A loop calls :meth:`attach` once, and before every :meth:`step` both computes the gradients, as for any optimizer,
    and hands over the batch with :meth:`observe`. All examples that a step evaluates come from that batch, so that the
    batch size counts every example that an update consumes. A copy is not attached.
    """

    _problem: Problem | None = None
    _batch: Batch | None = None

    def attach(self, problem: Problem) -> None:
        """Say what is optimized; once, before the first step."""
        self._problem = problem

    def observe(self, batch: Batch) -> None:
        """The examples of the next step."""
        self._batch = batch

    @property
    def problem(self) -> Problem:
        """What is optimized.

        Raises:
            RuntimeError: before :meth:`attach`.
        """
        if self._problem is None:
            raise RuntimeError(f"{type(self).__name__} evaluates the model itself: call attach(problem) before step()")
        return self._problem

    def take_batch(self) -> Batch:
        """The observed batch, once.

        Raises:
            RuntimeError: if none was observed since the step before.
        """
        if self._batch is None:
            raise RuntimeError(f"{type(self).__name__} needs the batch of the step: call observe(batch) before step()")
        batch, self._batch = self._batch, None
        return batch
