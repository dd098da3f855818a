"""The curvature of a loss in the outputs of a model: vectors whose covariance it is, and its second-order model."""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.optimizers.problem import Batch, Problem

KINDS = ("sampled", "empirical")
"""``"sampled"`` for the Hessian of the loss in the outputs, ``"empirical"`` for the squared gradient of the batch."""


def curvature_vectors(
    problem: Problem, outputs: Tensor, batch: Batch, generator: torch.Generator, kind: str = "sampled"
) -> Tensor:
    """For every example a random vector with mean 0, independent of the others, whose covariance is a curvature.

    Pulled back through the model and squared, their mean is the diagonal of a Gauss-Newton matrix; without the
    squares between examples, which vanish in the mean.

    Args:
        problem: the loss.
        outputs: of the model, shape ``[examples, ...]``.
        batch: the examples.
        generator: on the CPU.
        kind: ``"sampled"`` draws :attr:`Problem.curvature_sample`: the generalised Gauss-Newton matrix, or the Fisher
            matrix of a likelihood. ``"empirical"`` takes the gradient of the example's own loss with a random sign: the
            empirical Fisher. For a loss that is a mean over T tokens the latter is smaller by a factor of order T,
            because the sum over the tokens is squared with its 1/T.

    Returns:
        Shape of ``outputs``.
    """
    outputs = outputs.detach()
    if kind == "sampled":
        return problem.curvature_sample(outputs, batch, generator)
    gradient = loss_gradient(problem, outputs, batch)
    signs = torch.randint(0, 2, (len(outputs),), generator=generator).to(gradient).mul_(2).sub_(1)
    return gradient * signs.view(-1, *[1] * (outputs.ndim - 1))


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
