"""How many examples a forward pass holds, observed by hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError
from cbs.noise_scale.grouping import Grouping

CountExamples = Callable[[tuple[Any, ...], dict[str, Any]], int]
"""Number of examples in the arguments ``(args, kwargs)`` of a forward pass."""

TWO_FORWARD = (
    "two forward passes under one backward pass: the noise scale cannot tell whether they hold the same examples; "
    "make them one, or say with count= how many examples both together have; evaluate under torch.no_grad()"
)
TWO_BACKWARD = (
    "two backward passes after one forward pass: the noise scale cannot tell them apart; run the model once for each, "
    "or add the losses"
)
NOT_CALLED = (
    "a gradient reaches the model without a forward pass of it; give the noise scale the module that the training loop "
    "calls"
)
NO_EXAMPLES = "a forward pass has no examples; leave empty batches out"
SPARSE = "a gradient is sparse, and cannot be measured; build the module with sparse=False"


def first_dimension(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """First dimension of the first tensor among the arguments.

    Raises:
        ConfigError: if there is none.
    """
    for leaf in tree_leaves((tuple(args), dict(kwargs))):
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            return leaf.shape[0]
    raise ConfigError("cannot tell the number of examples: the model's forward pass takes no tensor; pass count=")


class Pass(NamedTuple):
    """A forward pass.

    Attributes:
        number: of the pass, from 1 on.
        examples: of it.
        members, order: see :meth:`Grouping.of`.
    """

    number: int = 0
    examples: int = 0
    members: int = 1
    order: Tensor | None = None


class ForwardPasses:
    """Counts the forward passes of a model that will be differentiated.

    Args:
        model: what is called in the training loop.
        count: number of examples of a pass.
        grouping: which of them belong together.

    Attributes:
        latest: the latest pass; one of no examples before the first.
        outputs: first dimension of the output of the latest pass; 0 if it has none.
        wrong: what is wrong with the groups of the step; ``None`` if nothing.
        unequal: fewest and most examples of a pass in the latest step whose passes differed; ``None`` if none did.
        shared: whether all passes under one backward pass are of the same examples, as whoever counts them says.
    """

    def __init__(
        self, model: nn.Module, count: CountExamples = first_dimension, grouping: Grouping | None = None
    ) -> None:
        self.grouping = grouping or Grouping()
        self.latest = Pass()
        self.wrong: ConfigError | None = None
        self._seen = 0
        self.outputs = 0
        self.unequal: tuple[int, int] | None = None
        self._sizes: set[int] = set()
        self.shared = count is not first_dimension
        self._model = model
        self._count = count
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Start counting."""
        self._handles = [
            self._model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True),
            self._model.register_forward_hook(self._end),
        ]

    def detach(self) -> None:
        """Stop counting."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def end_step(self) -> None:
        """The passes from here on belong to the next step."""
        if len(self._sizes) > 1:
            self.unequal = min(self._sizes), max(self._sizes)
        self._sizes.clear()
        self.wrong, self._seen = None, 0

    def mismatch(self) -> ConfigError | None:
        """The error where the groups of a pass are none, or nobody said how many examples there are, and the output of
        the latest pass has other rows."""
        if self.wrong is not None:
            return self.wrong
        examples = self.latest.examples
        if not self.shared and examples and self.outputs % examples:
            return ConfigError(
                f"the first tensor that the model is called with has {examples} rows, its output {self.outputs}: "
                "say with count= how many examples a forward pass has"
            )
        return None

    def _begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            examples = self._count(args, kwargs)
            self._sizes.add(examples)
            self.latest = self.latest._replace(number=self.latest.number + 1, examples=examples, order=None)
            try:
                members, order = self.grouping.of(examples, args, kwargs)
                if self._seen not in (0, members):
                    raise ConfigError(f"groups of {self._seen} and of {members} examples in a step")
                self._seen = members
                self.latest = self.latest._replace(members=members, order=order)
            except ConfigError as error:
                self.wrong = self.wrong or error

    def _end(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled():
            self.outputs = next(
                (leaf.shape[0] for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.ndim), 0
            )
