"""Hooks that count the examples of each forward pass."""

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
"""Function that returns the number of examples in the arguments ``(args, kwargs)`` of a forward pass."""

TWO_FORWARD = (
    "two forward passes under one backward pass: the noise scale cannot tell whether they hold the same examples; "
    "merge them into one pass, or pass count= to say how many examples both have together; if one is an evaluation, "
    "run it under torch.no_grad()"
)
TWO_BACKWARD = (
    "two backward passes after one forward pass: the noise scale cannot tell them apart; run the model once for each, "
    "or add the losses"
)
NOT_CALLED = (
    "a gradient reaches the model without a forward pass through it; pass the module that the training loop calls to "
    "the noise scale"
)
NO_EXAMPLES = "a forward pass has no examples; skip empty batches"
SPARSE = "a gradient is sparse, and cannot be measured; build the module with sparse=False"


def first_dimension(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the first dimension of the first tensor among the arguments.

    Raises:
        ConfigError: if no argument is a tensor.
    """
    for leaf in tree_leaves((tuple(args), dict(kwargs))):
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            return leaf.shape[0]
    raise ConfigError("cannot tell the number of examples: the model's forward pass takes no tensor; pass count=")


class Pass(NamedTuple):
    """One forward pass.

    Attributes:
        number: number of the pass, counted from 1.
        units: places of the examples of every group, shape ``[groups, members]``.
        wrong: why there are no such groups; ``None`` if there are.
    """

    number: int = 0
    units: Tensor = torch.empty(0, 1, dtype=torch.long)
    wrong: ConfigError | None = None

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self.units.numel()

    @property
    def members(self) -> int:
        """Number of examples in a group."""
        return self.units.shape[1]


class ForwardPasses:
    """Counter of the forward passes of a model that run with gradients enabled.

    Args:
        model: the module that the training loop calls.
        count: returns the number of examples in a pass.
        grouping: groups of examples that belong together.

    Attributes:
        latest: the latest pass; one without examples before the first.
        outputs: first dimension of the output of the latest pass; 0 if it has none.
        unequal: fewest and most examples of a differentiated pass in the latest step with passes of different sizes;
            ``None`` before that.
        shared: whether all passes under one backward pass count as passes over the same examples, which a ``count`` of
            the user's own implies.
    """

    def __init__(
        self, model: nn.Module, count: CountExamples = first_dimension, grouping: Grouping | None = None
    ) -> None:
        self.grouping = grouping or Grouping()
        self.latest = Pass()
        self._members = 0
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
        """End the step: later passes belong to the next one."""
        if len(self._sizes) > 1:
            self.unequal = min(self._sizes), max(self._sizes)
        self._sizes.clear()
        self._members = 0

    def differentiated(self, one: Pass) -> ConfigError | None:
        """Count a pass among those of the step, as its gradient arrives; return why it cannot be measured, if so."""
        if one.wrong is not None or one.examples < 1:
            return one.wrong or ConfigError(NO_EXAMPLES if one.number else NOT_CALLED)
        if self._members not in (0, one.members):
            return ConfigError(
                f"groups of {self._members} and of {one.members} examples in one step; all groups must have the same "
                "size"
            )
        self._members = one.members
        self._sizes.add(one.examples)
        return None

    def mismatch(self) -> ConfigError | None:
        """Return the error in the default number of examples, of which the rows of the latest output are no multiple;
        ``None`` if there is none.
        """
        examples = self.latest.examples
        if not self.shared and examples and self.outputs % examples:
            return ConfigError(
                f"the first tensor that the model is called with has {examples} rows, but its output {self.outputs}: "
                "pass count= to say how many examples a forward pass has"
            )
        return None

    def _begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            examples, wrong = self._count(args, kwargs), None
            try:
                units = self.grouping.of(examples, args, kwargs)
            except ConfigError as error:
                units, wrong = torch.arange(examples)[:, None], error
            self.latest = Pass(self.latest.number + 1, units, wrong)

    def _end(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if torch.is_grad_enabled():
            self.outputs = next(
                (leaf.shape[0] for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.ndim), 0
            )
