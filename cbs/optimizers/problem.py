"""The interface of optimizers that evaluate the model themselves: second-order methods need more than gradients.

A :class:`Problem` defines what is optimized, a :class:`ModelFunction` evaluates it without affecting the training loop,
and a :class:`ProblemOptimizer` uses both.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from cbs.errors import ConfigError
from cbs.optimizers.contract import CheckedOptimizer

Batch = Any  # A tensor, or a tuple or dictionary of tensors, whose first dimension counts examples


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, and its loss as a composition of two functions.

    The mean over the batch of ``output_losses(outputs(model, batch), batch)`` is the training loss.

    Attributes:
        model: the model whose parameters are optimized.
        outputs: ``outputs(model, batch)``, shape ``[examples, ...]``; the loss depends on the model only through them.
        output_losses: ``output_losses(outputs, batch)``, the loss of every example, shape ``[examples]``.
        curvature_sample: ``curvature_sample(outputs, batch, generator)``, shape of ``outputs``: for every example a
            random vector z, independent of the others, with mean 0 and E[z z'] the Hessian of its loss in its outputs.
            Pulled back through the model, z has the generalised Gauss-Newton matrix as its covariance. Where the loss
            is a negative log-likelihood, its gradient at targets drawn from the model's own distribution is such a z.
        seed: seed of the optimizer's random draws.
        micro_batch_size: largest number of examples in a forward pass, or ``None`` for no limit.
    """

    model: nn.Module
    outputs: Callable[[nn.Module, Batch], Tensor]
    output_losses: Callable[[Tensor, Batch], Tensor]
    curvature_sample: Callable[[Tensor, Batch, torch.Generator], Tensor]
    seed: int = 0
    micro_batch_size: int | None = None


class ModelFunction(nn.Module):
    """The outputs of a problem's model for a batch, as a function of its trainable parameters.

    The model is evaluated through a twin: its modules are copied, its parameters and buffers are shared. So hooks,
    compiled code or a noise-scale probe on the model do not notice an evaluation, and hooks on the twin do not affect
    the model. Create it before hooks are attached to the model. Buffers that a forward pass updates, such as those of
    BatchNorm, are updated by evaluations, too.

    Args:
        problem: the model and its loss.

    Attributes:
        parameters_in_order: the trainable parameters, each once.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        model = problem.model
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.twin = copy.deepcopy(model, shared)
        self.problem = problem
        named = {f"twin.{name}": param for name, param in model.named_parameters() if param.requires_grad}
        self.names = list(named)
        self.parameters_in_order = list(named.values())
        self._pairs = list(zip(self.twin.modules(), model.modules(), strict=True))

    def forward(self, batch: Batch) -> Tensor:
        """Return the outputs at the current parameters, shape ``[examples, ...]``."""
        return self.problem.outputs(self.twin, batch)

    def at(self, values: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the outputs with ``values`` in place of the trainable parameters, shape ``[examples, ...]``."""
        for twin, module in self._pairs:
            if twin.training != module.training:
                twin.training = module.training
        return functional_call(self, dict(zip(self.names, values, strict=True)), (batch,))

    @property
    def holds_what_is_trainable(self) -> bool:
        """Whether the trainable parameters are still the same."""
        trainable = {id(param) for param in self.problem.model.parameters() if param.requires_grad}
        return trainable == set(map(id, self.parameters_in_order))

    def values(self) -> list[Tensor]:
        """Return the current parameters as new leaves of the graph that share their memory."""
        return [param.detach().requires_grad_() for param in self.parameters_in_order]


class ProblemOptimizer(CheckedOptimizer):
    """An optimizer that evaluates the model on the examples of the step.

    A loop calls :meth:`attach` once. Before every :meth:`step` it computes the gradients, as for any optimizer, and
    passes the batch to :meth:`observe`. All examples that a step evaluates come from that batch, so that the batch size
    counts every example that an update uses. A copy is not attached.

    Attributes:
        reads_gradients: whether a step uses the gradients that the loop computed.
    """

    reads_gradients = True
    _function: ModelFunction | None = None
    _batch: Batch | None = None

    def attach(self, problem: Problem) -> None:
        """Set the problem to optimize; call it once, before the first step."""
        self._function = ModelFunction(problem)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; possible only before :meth:`attach`.

        Raises:
            RuntimeError: after :meth:`attach`.
            ValueError: as :meth:`CheckedOptimizer.add_param_group`.
        """
        if self._function is not None:
            raise RuntimeError(
                f"{type(self).__name__} accepts no new parameters after it was attached: build and attach a new one"
            )
        super().add_param_group(param_group)

    def observe(self, batch: Batch) -> None:
        """Set the examples of the next step."""
        self._batch = batch

    @property
    def function(self) -> ModelFunction:
        """The model as a function of its parameters.

        Raises:
            RuntimeError: before :meth:`attach`.
        """
        if self._function is None:
            raise RuntimeError(f"{type(self).__name__} evaluates the model itself: call attach(problem) before step()")
        return self._function

    @property
    def problem(self) -> Problem:
        """The problem that is optimized; raises like :attr:`function`."""
        return self.function.problem

    def take_batch(self) -> Batch:
        """Return the observed batch, and forget it.

        Raises:
            RuntimeError: if no batch was observed since the previous step, or the set of trainable parameters has
                changed since the optimizer was attached.
        """
        if self._batch is None:
            raise RuntimeError(f"{type(self).__name__} needs the batch of the step: call observe(batch) before step()")
        function = self._function
        if function is not None and not function.holds_what_is_trainable:
            name = type(self).__name__
            raise RuntimeError(
                f"parameters were frozen or unfrozen after {name} was attached: build and attach a new one"
            )
        batch, self._batch = self._batch, None
        return batch


def check_clipping(optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
    """Raise a :class:`~cbs.errors.ConfigError` if gradients are to be clipped that the optimizer does not use."""
    if clip_norm and isinstance(optimizer, ProblemOptimizer) and not optimizer.reads_gradients:
        name = type(optimizer).__name__
        raise ConfigError(
            f"{name} computes gradients of its own, which clip_norm does not reach; use --set clip_norm=none"
        )


def count_examples(batch: Batch) -> int:
    """Return the number of examples in a batch.

    Raises:
        ValueError: if it holds no tensor.
    """
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return leaf.shape[0]
    raise ValueError("a batch must hold a tensor whose first dimension counts examples")


def examples(batch: Batch, which: slice | Tensor) -> Batch:
    """Return some examples of a batch.

    Args:
        batch: the batch.
        which: a slice, or indices on the CPU.
    """

    def take(leaf: object) -> object:
        if not (isinstance(leaf, Tensor) and leaf.ndim):
            return leaf
        return leaf[which] if isinstance(which, slice) else leaf[which.to(leaf.device)]

    return tree_map(take, batch)


def micro_batches(batch: Batch, limit: int | None) -> Iterator[Batch]:
    """Yield the fewest parts of at most ``limit`` examples, with sizes that differ by at most one."""
    total = count_examples(batch)
    parts = 1 if limit is None else -(-total // limit)
    for index in range(parts):
        yield batch if parts == 1 else examples(batch, slice(index * total // parts, (index + 1) * total // parts))
