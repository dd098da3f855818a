"""What is known of one forward pass, and of the passes that follow it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.layers.contribution import Contribution
from cbs.noise_scale.layers.groups import Run

if TYPE_CHECKING:
    from cbs.noise_scale.layers.layer import Layer


class Pass:
    """One forward pass.

    Args:
        number: of the pass.
        examples: of the pass.
        runs: its groups.

    Attributes:
        uses: calls of watched layers, by index of the parameter tensor; all those with copies of it count as one.
        seen: how many of them were differentiated.
        held: contributions that wait for the others, by index.
        copies: copies of parameter tensors, one per group, by index; see :mod:`cbs.noise_scale.layers.copies`.
    """

    def __init__(self, number: int, examples: int, runs: tuple[Run, ...]) -> None:
        self.number = number
        self.examples = examples
        self.runs = runs
        self.uses: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.held: dict[int, list[Sequence[Contribution]]] = {}
        self.copies: dict[int, Tensor] = {}
        self._copied: set[int] = set()

    def copies_for(self, layer: Layer, input: Tensor) -> dict[str, Tensor] | None:
        """Copies of a layer's parameters by attribute name, if it is to use them in a call.

        Not where activations are recomputed: what is computed first and what is computed again must be the same, and
        it does not show then which pass a call belongs to. Not where it is in doubt which rows belong to which example
        either; a node in the backward pass looks into that.
        """
        if input.ndim == 0:
            return None
        rows = input.shape[0]
        if rows != self.examples:
            examples_second = input.ndim > 1 and input.shape[1] == self.examples
            if rows == 0 or (rows != 1 and (rows % self.examples or examples_second)):
                return None
        if recomputing() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None
        self.count(index for index in layer.watched.values() if index not in self._copied)
        self._copied.update(layer.watched.values())
        return {attribute: self.copies[index] for attribute, index in layer.watched.items()}

    def count(self, indices: Iterable[int]) -> None:
        """Count a use of parameter tensors; recomputed activations are none."""
        if not recomputing():
            for index in indices:
                self.uses[index] = self.uses.get(index, 0) + 1


def recomputing() -> bool:
    """Whether this is a backward pass."""
    return torch._C._current_graph_task_id() != -1


def refuse_second_derivatives(what: str) -> None:
    """Called in a backward pass, where only ``create_graph=True`` enables gradients.

    Raises:
        ConfigError: if they are enabled.
    """
    if torch.is_grad_enabled():
        raise ConfigError(
            f"{what} is differentiated twice (create_graph=True), which only the source 'accumulation' can watch"
        )
