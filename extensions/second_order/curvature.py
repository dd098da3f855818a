"""Gradients of a loss, and of its second-order model, with respect to a model's outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.optimizers.problem import Batch, Problem


def loss_gradient(problem: Problem, outputs: Tensor, batch: Batch) -> Tensor:
    """Return the gradient of every example's loss with respect to its outputs, shape of ``outputs``."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(problem.output_losses(leaf, batch).sum(), leaf)
    return gradient


def model_gradient(problem: Problem, outputs: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """Return the gradient of every example's second-order model of the loss at ``outputs + direction``.

    This is the gradient plus the Hessian times ``direction``, shape of ``outputs``.
    """
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = problem.output_losses(leaf, batch)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf, create_graph=True)
        if not gradient.requires_grad:
            return gradient
        (product,) = torch.autograd.grad(gradient, leaf, direction)
    return gradient.detach() + product
