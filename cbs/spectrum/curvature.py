r"""Products of the curvature of a mean loss with vectors: the Gauss-Newton matrix, or the Hessian.

A quadratic with a minimum needs a curvature without negative eigenvalues, so the Gauss-Newton matrix
:math:`G = E[J^\top (\nabla^2 l) J]` is the default (Schraudolph 2002). For a likelihood it is the Fisher matrix; the
Hessian is G plus a part that vanishes with the residuals and contains everything negative. The Hessian is for models
whose loss is not available as a function of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.optimizers.problem import Batch, ModelFunction, Problem, count_examples, micro_batches
from cbs.optimizers.second_order.curvature import loss_curvature
from cbs.optimizers.second_order.linearization import Linearization, full
from cbs.spectrum.hessian import hessian_product
from cbs.spectrum.lanczos import Product
from cbs.spectrum.record import GAUSS_NEWTON, HESSIAN

PartProduct = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Function from a direction, one tensor per parameter, to the product of a batch's curvature with it, likewise."""

Loss = Callable[[Any], Tensor]
"""Function from a batch to the mean loss over its examples, a scalar."""


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor per parameter as a single float64 vector, shape ``[d]``."""
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])


def shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the inverse of :func:`flat`, with the shapes and dtypes of ``like``."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor).to(tensor) for part, tensor in zip(parts, like, strict=True)]


def curvature_product(kind: str, model: nn.Module, loss: Loss, problem: Problem | None, batch: Batch) -> Product:
    """Return products with the curvature of the mean loss over ``batch`` at the current parameters.

    Args:
        kind: ``"gauss_newton"`` or ``"hessian"``.
        model: model whose trainable parameters are used.
        loss: mean loss of the model over a batch.
        problem: the loss as a function of the model's outputs, for the Gauss-Newton matrix; its ``micro_batch_size``
            limits the memory.
        batch: the examples.

    Raises:
        ConfigError: if the kind is unknown, or the model does not support it.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    limit = problem.micro_batch_size if problem else None
    if kind == GAUSS_NEWTON:
        if problem is None:
            raise ConfigError("the Gauss-Newton matrix needs the model's outputs; use --curvature hessian")
        function = ModelFunction(problem)

        def make(part: Batch) -> PartProduct:
            return gauss_newton_product(function, part)
    elif kind == HESSIAN:

        def make(part: Batch) -> PartProduct:
            return hessian_product(loss, part, parameters)
    else:
        raise ConfigError(f"curvature must be {GAUSS_NEWTON} or {HESSIAN}, got {kind!r}")
    parts, total = list(micro_batches(batch, limit)), count_examples(batch)
    kept = make(parts[0]) if len(parts) == 1 else None

    def product(vector: Tensor) -> Tensor:
        direction = shaped(vector, parameters)
        products = [flat((kept or make(part))(direction)) * (count_examples(part) / total) for part in parts]
        return torch.stack(products).sum(0)

    return product


def gauss_newton_product(function: ModelFunction, batch: Batch) -> PartProduct:
    """Return products with the Gauss-Newton matrix of the mean loss over ``batch``, from one graph of the outputs."""
    problem, count = function.problem, count_examples(batch)
    linearization = Linearization(function, full, [])
    leaves = function.values()
    with torch.enable_grad():
        outputs = function.at(leaves, batch)

    def product(direction: Sequence[Tensor]) -> Sequence[Tensor]:
        moved = linearization.push(batch, dict(enumerate(direction)))
        pulled = loss_curvature(problem, outputs, batch, moved) / count
        return torch.autograd.grad(outputs, leaves, pulled, retain_graph=True, materialize_grads=True)

    return product
