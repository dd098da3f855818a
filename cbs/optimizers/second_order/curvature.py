"""Gradient of a loss in the outputs of a model, and that of its second-order model."""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.optimizers.problem import Batch, Problem


def loss_gradient(problem: Problem, outputs: Tensor, batch: Batch) -> Tensor:
    """Gradient of every example's loss in its outputs, shape of ``outputs``."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(problem.output_losses(leaf, batch).sum(), leaf)
    return gradient


def model_gradient(problem: Problem, outputs: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """Gradient of every example's second-order loss at ``outputs + direction``: gradient plus Hessian times
    ``direction``, shape of ``outputs``."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = problem.output_losses(leaf, batch)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf, create_graph=True)
        if not gradient.requires_grad:
            return gradient
        (product,) = torch.autograd.grad(gradient, leaf, direction)
    return gradient.detach() + product
