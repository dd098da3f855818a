"""The model's outputs as a function of its parameters, beside the training loop and unseen by it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from cbs.optimizers.problem import Batch, Problem


class ModelFunction(nn.Module):
    """What a problem's model says of a batch, at any values of its trainable parameters.

    The model is run as a twin: its modules are copied, its parameters and buffers are shared. So nothing that watches
    the model, such as hooks, compiled code or a noise-scale probe, notices an evaluation, and hooks put on the twin are
    not on the model. Make it before such watchers are attached. Buffers that a forward pass updates, as those of
    BatchNorm, are updated by evaluations too.

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
        """The outputs at the present parameters, shape ``[examples, ...]``."""
        return self.problem.outputs(self.twin, batch)

    def at(self, values: Sequence[Tensor], batch: Batch) -> Tensor:
        """The outputs with ``values`` in place of the trainable parameters, shape ``[examples, ...]``."""
        for twin, module in self._pairs:
            if twin.training != module.training:
                twin.training = module.training
        return functional_call(self, dict(zip(self.names, values, strict=True)), (batch,))

    def values(self) -> list[Tensor]:
        """The present parameters as new leaves of the graph that share their memory."""
        return [param.detach().requires_grad_() for param in self.parameters_in_order]


def count_examples(batch: Batch) -> int:
    """Number of examples in a batch.

    Raises:
        ValueError: if it holds no tensor.
    """
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return leaf.shape[0]
    raise ValueError("a batch must hold a tensor whose first dimension counts examples")


def examples(batch: Batch, which: slice | Tensor) -> Batch:
    """Some examples of a batch.

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
    """The batch in as few parts of at most ``limit`` examples as can be, of sizes that differ by at most one."""
    total = count_examples(batch)
    parts = 1 if limit is None else -(-total // limit)
    for index in range(parts):
        yield batch if parts == 1 else examples(batch, slice(index * total // parts, (index + 1) * total // parts))
