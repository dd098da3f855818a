"""The curvature of a loss with respect to a model's outputs: random vectors with this covariance, and products with
it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.optimizers.problem import Batch, Problem

KINDS = ("sampled", "empirical")
"""``"sampled"`` for the Hessian of the loss with respect to the outputs, ``"empirical"`` for squared gradients of the
examples' own losses."""


def curvature_vectors(
    problem: Problem, outputs: Tensor, batch: Batch, generator: torch.Generator, kind: str = "sampled"
) -> Tensor:
    """Return for every example an independent random vector with mean 0 whose covariance is a curvature.

    Pulled back through the model, the mean of their elementwise squares is the diagonal of a Gauss-Newton matrix;
    products between different examples vanish in the mean.

    Args:
        problem: the loss.
        outputs: outputs of the model, shape ``[examples, ...]``.
        batch: the examples.
        generator: generator of the random vectors, on the CPU.
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
    """Return the gradient of every example's loss with respect to its outputs, shape of ``outputs``."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(problem.output_losses(leaf, batch).sum(), leaf)
    return gradient


def loss_curvature(problem: Problem, outputs: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """Return the Hessian of every example's loss with respect to its outputs times ``direction``, shape of
    ``outputs``.
    """
    return _derivatives(problem, outputs, batch, direction)[1]


def model_gradient(problem: Problem, outputs: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """Return the gradient of every example's second-order model of the loss at ``outputs + direction``.

    This is the gradient plus the Hessian times ``direction``, shape of ``outputs``.
    """
    gradient, product = _derivatives(problem, outputs, batch, direction)
    return gradient + product


def _derivatives(problem: Problem, outputs: Tensor, batch: Batch, direction: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = problem.output_losses(leaf, batch)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf, create_graph=True)
        if not gradient.requires_grad:
            return gradient, torch.zeros_like(direction)
        (product,) = torch.autograd.grad(gradient, leaf, direction)
    return gradient.detach(), product
