"""Gauss-Newton models of a loss from dense derivatives, one output at a time: the slow twin of
``extensions.second_order.optimizers.gauss_newton``."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Outputs = Callable[[Tensor, Sequence[int]], Tensor]
"""``(parameters, examples)`` to the outputs, ``[examples, outputs]``; parameters are one flat vector."""
Losses = Callable[[Tensor, Sequence[int]], Tensor]  # ``(outputs, examples)`` to the loss of each example


def dense(outputs: Outputs, losses: Losses, theta: Tensor, examples: Sequence[int]) -> dict[str, np.ndarray]:
    """Outputs y, their Jacobian J, and gradient g and Hessian H of the mean loss in the outputs, all flattened."""
    theta = theta.detach().requires_grad_()
    y = outputs(theta, examples)
    jacobian = [torch.autograd.grad(entry, theta, retain_graph=True)[0] for entry in y.flatten()]
    leaf = y.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(losses(leaf, examples).mean(), leaf, create_graph=True)
    hessian = [
        torch.autograd.grad(entry, leaf, retain_graph=True)[0].flatten()
        if entry.requires_grad
        else torch.zeros(leaf.numel())
        for entry in gradient.flatten()
    ]
    found = {"y": y.flatten(), "J": torch.stack(jacobian), "g": gradient.flatten(), "H": torch.stack(hessian)}
    return {name: value.detach().double().numpy() for name, value in found.items()}


def full_gradient(parts: dict[str, np.ndarray], displacement: np.ndarray) -> np.ndarray:
    """J' (g + H J displacement)."""
    return parts["J"].T @ (parts["g"] + parts["H"] @ parts["J"] @ displacement)


class GaussNewtonTwin:
    """Gauss-Newton with gradient descent inside, in float64."""

    def __init__(self, outputs: Outputs, losses: Losses, theta: Tensor, lr: float, *, cosine: bool) -> None:
        self.outputs, self.losses = outputs, losses
        self.theta, self.iterate = theta.double().clone(), theta.double().clone()
        self.lr, self.cosine = lr, cosine
        self.alphas: list[float] = []

    def step(self, inner: Sequence[Sequence[int]], search: Sequence[int]) -> None:
        point = self.iterate.clone()
        for step, examples in enumerate(inner):
            parts = dense(self.outputs, self.losses, self.theta, examples)
            share = (1 + math.cos(math.pi * step / len(inner))) / 2 if self.cosine else 1.0
            gradient = full_gradient(parts, (point - self.theta).numpy())
            point = point - self.lr * share * torch.from_numpy(gradient)
        self.iterate = point
        best = (math.inf, 0.0)
        for power in range(5):
            alpha = 2 ** (-power / 2)
            there = self.theta + alpha * (point - self.theta)
            loss = float(self.losses(self.outputs(there, search), search).mean())
            if loss < best[0]:
                best = (loss, alpha)
        self.alphas.append(best[1])
        self.theta = self.theta + best[1] * (point - self.theta)
