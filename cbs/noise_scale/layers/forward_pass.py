"""What is known of one forward pass, of its groups and of the passes that follow it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cbs.errors import ConfigError
from cbs.noise_scale.grouping import Cells
from cbs.noise_scale.layers.contribution import Contribution


class Pass:
    """One forward pass, or several over the same examples.

    Args:
        number: of the pass.
        cells: its examples in groups.
        plain: whether the step was given up before, so that what is shared stays whole; recomputed activations have to
            be the same, whatever happened since.

    Attributes:
        examples: of the pass.
        groups: number of its cells, each of which is a group to the layers.
        size: examples of one.
        uses: calls of watched layers, by index of the parameter tensor.
        seen: how many of them were differentiated.
        held: contributions that wait for the others, by index.
    """

    def __init__(self, number: int, cells: Cells, *, plain: bool = False) -> None:
        self.plain = plain
        self.number = number
        self.cells = cells
        self.examples, self.groups, self.size = cells.examples, cells.number, cells.size
        self.uses: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.held: dict[int, list[Contribution]] = {}

    def count(self, indices: Iterable[int]) -> None:
        """Count a use of parameter tensors; recomputed activations are none."""
        if torch._C._current_graph_task_id() == -1:  # not inside a backward pass
            for index in indices:
                self.uses[index] = self.uses.get(index, 0) + 1


def refuse_second_derivatives(what: str) -> None:
    """Called in a backward pass, where only ``create_graph=True`` enables gradients.

    Raises:
        ConfigError: if they are enabled.
    """
    if torch.is_grad_enabled():
        raise ConfigError(
            f"{what} is differentiated twice (create_graph=True), which only the source 'accumulation' can watch"
        )
