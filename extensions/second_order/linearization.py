r"""Gauss-Newton models of a loss around fixed parameters, and their gradients without a matrix.

With f the outputs of the model, J their derivative at the centre :math:`\theta_t`, :math:`y_0 = f(\theta_t)`, l the
loss as a function of the outputs and :math:`\Delta = \theta - \theta_t` (Abreu et al. 2025, arXiv 2510.09378),

.. math::
    Q(\theta) &= l(y_0) + \langle \nabla l(y_0), J \Delta \rangle
               + \tfrac12 \langle J \Delta, \nabla^2 l(y_0) J \Delta \rangle \\
    \nabla Q &= J^\top (\nabla l(y_0) + \nabla^2 l(y_0) J \Delta)

is the full Gauss-Newton model, and :math:`l(y_0 + J \Delta)` with gradient :math:`J^\top \nabla l(y_0 + J \Delta)` the
prox-linear one, which linearises the model and keeps the loss.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from cbs.optimizers.problem import Batch, ModelFunction, Problem, count_examples, micro_batches

Model = Callable[[Problem, Tensor, Batch, Tensor], Tensor]
"""Function ``(problem, y0, batch, J Delta)`` that returns the gradient of every example's modelled loss with respect to
the outputs."""


def full(problem: Problem, outputs: Tensor, batch: Batch, moved: Tensor) -> Tensor:
    """Return the gradient plus the Hessian of the loss at ``outputs`` times ``moved``."""
    return model_gradient(problem, outputs, batch, moved)


def prox_linear(problem: Problem, outputs: Tensor, batch: Batch, moved: Tensor) -> Tensor:
    """Return the gradient of the loss at ``outputs + moved``."""
    return loss_gradient(problem, outputs + moved, batch)


class Linearization:
    """Gradients of a Gauss-Newton model around the parameters at its construction.

    Args:
        function: outputs as a function of the parameters.
        model: :func:`full` or :func:`prox_linear`.
        blocks: positions of the parameters in each block. Each block has its own model, in which the parameters of the
            other blocks stay at the centre.

    Attributes:
        centre: copies of the parameters at construction.
    """

    def __init__(self, function: ModelFunction, model: Model, blocks: Sequence[Sequence[int]]) -> None:
        self._function = function
        self._model = model
        self._blocks = blocks
        self.centre = [param.detach().clone() for param in function.parameters_in_order]

    def gradient(self, batch: Batch, displacement: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradient of the batch's mean modelled loss at ``centre + displacement``.

        Args:
            batch: examples.
            displacement: one tensor for each parameter.

        Returns:
            One tensor for each parameter, ``None`` where the outputs do not depend on it.
        """
        problem, total = self._function.problem, count_examples(batch)
        moving = [
            {index: displacement[index] for index in block} if any(bool(displacement[i].any()) for i in block) else {}
            for block in self._blocks
        ]
        gradient: list[Tensor | None] = [None] * len(self.centre)
        for part in micro_batches(batch, problem.micro_batch_size):
            with torch.enable_grad():
                leaves = [value.detach().requires_grad_() for value in self.centre]
                outputs = self._function.at(leaves, part)
            for block, moves in zip(self._blocks, moving, strict=True):
                if moves:
                    pulled = self._model(problem, outputs.detach(), part, self.push(part, moves))
                else:
                    pulled = loss_gradient(problem, outputs, part)
                gradients = torch.autograd.grad(
                    outputs, [leaves[index] for index in block], pulled / total, retain_graph=True, allow_unused=True
                )
                for index, value in zip(block, gradients, strict=True):
                    known = gradient[index]
                    gradient[index] = value if known is None or value is None else known + value
        return gradient

    def push(self, batch: Batch, displacement: dict[int, Tensor]) -> Tensor:
        """Return J times the displacement, in the shape of the outputs.

        Args:
            batch: examples.
            displacement: displacements of parameters by position; the others stay.
        """
        # The fused kernels of attention have no forward derivative.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
            values = list(self.centre)
            for index, tangent in displacement.items():
                values[index] = forward_ad.make_dual(values[index], tangent)
            outputs, moved = forward_ad.unpack_dual(self._function.at(values, batch))
        return torch.zeros_like(outputs) if moved is None else moved


def layers(names: Sequence[str]) -> list[list[int]]:
    """Group the positions of parameters by layer, using their names.

    A layer is the part of a name up to its first number (``blocks.0`` for ``blocks.0.mlp_in.weight``), so that a block
    of a numbered stack is one layer; elsewhere it is the module that holds the parameter (``norm`` for
    ``norm.weight``). A tied weight belongs to the module that comes first.
    """
    by_module: dict[tuple[str, ...], list[int]] = {}
    for index, name in enumerate(names):
        path = name.split(".")[:-1]
        number = next((place for place, part in enumerate(path) if part.isdigit()), len(path))
        by_module.setdefault(tuple(path[: number + 1]), []).append(index)
    return list(by_module.values())


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
