"""How many examples a forward pass holds, found out by looking on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError

CountExamples = Callable[[tuple[Any, ...], dict[str, Any]], int]
"""Number of examples in the arguments ``(args, kwargs)`` of a forward pass."""


def first_dimension(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """First dimension of the first tensor among the arguments.

    Raises:
        ConfigError: if there is none.
    """
    for leaf in tree_leaves((tuple(args), dict(kwargs))):
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            return leaf.shape[0]
    raise ConfigError("cannot tell the number of examples: the model's forward pass takes no tensor; pass count=")


class ForwardPasses:
    """Counts the forward passes of a model that will be differentiated.

    Args:
        model: what is called in the training loop.
        count: number of examples of a pass.

    Attributes:
        number: passes so far.
        examples: of the latest pass; 0 before the first.
        shared: whether all passes under one backward pass are of the same examples, as whoever counts them says.
    """

    def __init__(self, model: nn.Module, count: CountExamples = first_dimension) -> None:
        self.number = 0
        self.examples = 0
        self.shared = count is not first_dimension
        self._model = model
        self._count = count
        self._handle: RemovableHandle | None = None

    def attach(self) -> None:
        """Start counting."""
        self._handle = self._model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)

    def detach(self) -> None:
        """Stop counting."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self.number += 1
            self.examples = self._count(args, kwargs)
