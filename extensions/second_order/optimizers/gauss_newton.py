r"""Gauss-Newton with an inner optimizer (Abreu et al. 2025, arXiv 2510.09378), on models without a matrix.

With f the outputs of the model, J their derivative at the centre :math:`\theta_t`, :math:`y_0 = f(\theta_t)`, l the
loss as a function of the outputs and :math:`\Delta = \theta - \theta_t`,

.. math::
    Q(\theta) &= l(y_0) + \langle \nabla l(y_0), J \Delta \rangle
               + \tfrac12 \langle J \Delta, \nabla^2 l(y_0) J \Delta \rangle \\
    \nabla Q &= J^\top (\nabla l(y_0) + \nabla^2 l(y_0) J \Delta)

is the full Gauss-Newton model, and :math:`l(y_0 + J \Delta)` with gradient :math:`J^\top \nabla l(y_0 + J \Delta)` the
prox-linear one, which linearises the model and keeps the loss.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_

from cbs.compute import seeding
from cbs.optimizers.adam import adamw
from cbs.optimizers.base import optimizer
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.contract import check_choice, check_count, check_decay, evaluated
from cbs.optimizers.muon import muon
from cbs.optimizers.problem import (
    Batch,
    ModelFunction,
    Problem,
    ProblemOptimizer,
    count_examples,
    examples,
    micro_batches,
)


@torch.no_grad()
def mean_loss(function: ModelFunction, values: Sequence[Tensor], batch: Batch) -> Tensor:
    """Return the mean loss over the batch with ``values`` as parameters, a scalar."""
    problem = function.problem
    parts = micro_batches(batch, problem.micro_batch_size)
    total = torch.stack([problem.output_losses(function.at(values, part), part).double().sum() for part in parts])
    return total.sum() / count_examples(batch)


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
        number = next((at for at, part in enumerate(path) if part.isdigit()), len(path))
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


VARIANTS = ("full", "prox_linear", "layerwise")
INNER = ("muon", "adamw")
INNER_SCHEDULES = ("cosine", "constant")
# Fractions of Abreu et al. 2025 (arXiv 2510.09378): 1 to 1/4 in ratios of the square root of 2.
FRACTIONS = tuple(2.0 ** (-power / 2) for power in range(5))


class GaussNewton(ProblemOptimizer, CompositeOptimizer):
    r"""Each step minimizes a Gauss-Newton model of the loss with an inner optimizer, then does a line search.

    With the model Q of :mod:`extensions.second_order.optimizers.gauss_newton` around the parameters :math:`\theta_t`:

    1. N steps of the inner optimizer on Q, each on examples of its own, lead to :math:`\hat\theta`;
    2. :math:`\theta_{t+1} = \theta_t + \alpha (\hat\theta - \theta_t)` with the :math:`\alpha` in
       :math:`\{2^{-i/2}, i = 0..4\}` of the lowest mean loss, the true one, on further examples.

    All of these are examples of the outer step's batch: from a batch of B the line search uses
    ``floor(B * search_share)``, and the inner steps use equal parts of the rest, as many parts as have at least
    ``inner_batch_size`` examples, at least one. Without examples for the line search, alpha is 1. The examples are
    assigned at random at every step, so that repeated training on one batch uses all of it. The gradient of the batch
    that the training loop computes is not used.

    The learning rate of the groups is that of the inner optimizer at the first inner step; with the schedule
    ``"cosine"`` it falls to 0, and step j of N uses :math:`(1 + \cos(\pi j / N)) / 2` of it. The inner optimizer keeps
    its state from step to step, and its iterate starts from the previous :math:`\hat\theta`, that is from before the
    line search, unless ``reset_start`` is set.

    Variants: ``"full"``; ``"prox_linear"``, where only the model is linearized, not the loss; ``"layerwise"``, where
    each layer has a full model of its own with all others at :math:`\theta_t`, and the solutions are combined. A layer
    is a block of a numbered stack or, elsewhere, a module that holds parameters (see
    :func:`extensions.second_order.optimizers.gauss_newton.layers`).

    ``inner_clip`` limits the gradient norm of every inner step, as the authors' code does with 1. The norm is taken
    over the parameters of each inner optimizer, in the variant ``"layerwise"`` also separately for each layer.

    Args:
        inner: the inner optimizer, or several over disjoint parameters of the problem's model.
        variant: which model is minimized.
        inner_batch_size: number of examples in an inner step, at least 1.
        search_share: share of the batch that is used for the line search, in [0, 1).
        inner_schedule: ``"cosine"`` or ``"constant"``.
        reset_start: whether the inner iterate starts at :math:`\theta_t`.
        inner_clip: largest gradient norm of an inner step, above 0; ``None`` for no limit.

    Raises:
        ValueError: if a value is invalid.
    """

    reads_gradients = False

    def __init__(
        self,
        inner: Sequence[torch.optim.Optimizer],
        *,
        variant: str = "full",
        inner_batch_size: int = 8,
        search_share: float = 0.5,
        inner_schedule: str = "cosine",
        reset_start: bool = False,
        inner_clip: float | None = None,
    ) -> None:
        check_choice("variant", variant, VARIANTS)
        check_choice("inner_schedule", inner_schedule, INNER_SCHEDULES)
        check_count("inner_batch_size", inner_batch_size)
        check_decay("search_share", search_share)
        if inner_clip is not None and not inner_clip > 0.0:
            raise ValueError(f"inner_clip must be None or above 0, got {inner_clip}")
        super().__init__(inner)
        self.variant = variant
        self.inner_batch_size = inner_batch_size
        self.search_share = search_share
        self.inner_schedule = inner_schedule
        self.reset_start = reset_start
        self.inner_clip = inner_clip

    def attach(self, problem: Problem) -> None:
        """Set the problem to optimize; call it once, before the first step."""
        super().attach(problem)
        names = [name.removeprefix("twin.") for name in self.function.names]
        self._blocks = layers(names) if self.variant == "layerwise" else [list(range(len(names)))]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one outer step on the observed batch; return the closure's result."""
        loss = evaluated(closure)
        batch, function = self.take_batch(), self.function
        # If the state was reset, start again.
        done = self.param_groups[0].get("outer_step", 0) if self.state else 0
        generator = seeding.generator(self.problem.seed, f"examples {done}")
        inner, search = divide(count_examples(batch), self.inner_batch_size, self.search_share, generator)
        model = prox_linear if self.variant == "prox_linear" else full
        linearization = Linearization(function, model, self._blocks)
        reached = self._minimise(linearization, [examples(batch, indices) for indices in inner])
        params = function.parameters_in_order
        end = [param.clone() for param in params]
        if not self.reset_start:
            for param, value in zip(params, end, strict=True):
                # The inner optimizer assumes that it has initialized every parameter with state.
                if param in reached:
                    self.state[param]["iterate"] = value
        if len(search):
            _, point = best_fraction(function, linearization.centre, end, examples(batch, search))
            for param, value in zip(params, point, strict=True):
                param.copy_(value)
        self.param_groups[0]["outer_step"] = done + 1
        return loss

    def _minimise(self, linearization: Linearization, batches: Sequence[Batch]) -> set[nn.Parameter]:
        """Run the inner steps, one for each batch; return the parameters that had a gradient.

        The parameters are moved from the start to the end of the inner steps.
        """
        reached = set()
        params = self.function.parameters_in_order
        if not self.reset_start:
            for param in params:
                if "iterate" in self.state.get(param, {}):
                    param.copy_(self.state[param]["iterate"])
        gradients, peaks = [param.grad for param in params], [group["lr"] for group in self.param_groups]
        for step, batch in enumerate(batches):
            displacement = [param - centre for param, centre in zip(params, linearization.centre, strict=True)]
            for param, gradient in zip(params, linearization.gradient(batch, displacement), strict=True):
                # In the memory layout of the parameter, which torch's fused kernels assume.
                param.grad = None if gradient is None else torch.empty_like(param).copy_(gradient)
                if gradient is not None:
                    reached.add(param)
            share = 0.5 * (1.0 + math.cos(math.pi * step / len(batches))) if self.inner_schedule == "cosine" else 1.0
            for group, peak in zip(self.param_groups, peaks, strict=True):
                group["lr"] = peak * share
            if self.inner_clip is not None:
                self._clip(self.inner_clip)
            self.step_parts()
        for group, peak in zip(self.param_groups, peaks, strict=True):
            group["lr"] = peak
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        return reached

    def _clip(self, limit: float) -> None:
        params = self.function.parameters_in_order
        for inner in self.optimizers:
            held = {id(param) for group in inner.param_groups for param in group["params"]}
            for block in self._blocks:
                clip_grad_norm_([params[index] for index in block if id(params[index]) in held], limit)


def divide(
    total: int, inner_batch_size: int, search_share: float, generator: torch.Generator
) -> tuple[list[Tensor], Tensor]:
    """Divide the examples of a batch between the inner steps and the line search.

    Args:
        total: number of examples in the batch.
        inner_batch_size: least number of examples in an inner step, if there are enough.
        search_share: share of the batch that is used for the line search.
        generator: generator of the random order.

    Returns:
        Indices for each inner step, with sizes that differ by at most one, and indices for the line search.
    """
    searched = min(int(total * search_share), total - 1)
    used = total - searched
    count = max(1, used // inner_batch_size)
    order = torch.randperm(total, generator=generator)
    return [order[step * used // count : (step + 1) * used // count] for step in range(count)], order[used:]


@optimizer(
    "gauss_newton",
    lr_grid=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="second order",
    geometry={GaussNewton: "l2"},
    width_rule="spectral",
    paper="Abreu et al. 2025, arXiv 2510.09378",
    second_moment=False,
    decoupled_decay=False,
    options_of=GaussNewton,
)
def gauss_newton(
    model: nn.Module,
    lr: float,
    *,
    inner: str = "muon",
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    **options: Any,
) -> GaussNewton:
    """Inner optimizer on a Gauss-Newton model of the loss, then a line search.

    The learning rate is that of the inner optimizer: ``"muon"`` (:func:`cbs.optimizers.muon.muon`, with AdamW on
    embeddings and the head), whose width rule the entry has, or ``"adamw"``. ``betas`` are those of AdamW. See
    :class:`GaussNewton` for the other options. No noise scale matches a step that is preconditioned by the curvature;
    the geometry of the entry is the Euclidean one.

    Raises:
        ValueError: if an option is invalid, or the model has no trainable parameter.
    """
    check_choice("inner", inner, INNER)
    build = muon if inner == "muon" else adamw
    built = build(model, lr, betas=betas, weight_decay=weight_decay)
    return GaussNewton(built.optimizers if isinstance(built, CompositeOptimizer) else [built], **options)


def best_fraction(
    function: ModelFunction, start: Sequence[Tensor], end: Sequence[Tensor], batch: Batch
) -> tuple[float, list[Tensor]]:
    """Return the fraction of the way from ``start`` to ``end`` with the lowest mean loss, and the parameters there.

    For equal losses the larger fraction wins; NaN counts as infinite, and if all losses are infinite the fraction is 1,
    so that divergence is visible.

    Args:
        function: the model and its loss.
        start: parameters at fraction 0.
        end: parameters at fraction 1.
        batch: examples for the mean loss.
    """
    points = [
        [torch.lerp(one, other, fraction) for one, other in zip(start, end, strict=True)] for fraction in FRACTIONS
    ]
    losses = torch.stack([mean_loss(function, point, batch) for point in points])
    best = int(losses.nan_to_num(nan=float("inf")).argmin())
    return FRACTIONS[best], points[best]
