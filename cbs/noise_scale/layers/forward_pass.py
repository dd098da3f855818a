"""What is known of one forward pass, of its groups and of the passes that follow it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from cbs.errors import ConfigError
from cbs.noise_scale.layers.contribution import Contribution


class Run(NamedTuple):
    """Neighbouring groups of equal size.

    Attributes:
        start: first example.
        groups: number of groups.
        size: examples per group.
    """

    start: int
    groups: int
    size: int

    @property
    def stop(self) -> int:
        """One past the last example."""
        return self.start + self.groups * self.size


def split_examples(examples: int, groups: int) -> tuple[Run, ...]:
    """Split neighbouring examples into groups whose sizes differ by at most one, larger groups first.

    Args:
        examples: examples of a forward pass, at least 1.
        groups: wanted number of groups; one per example where there are fewer examples.
    """
    groups = min(groups, examples)
    size, larger = divmod(examples, groups)
    smaller = Run(larger * (size + 1), groups - larger, size)
    return (Run(0, larger, size + 1), smaller) if larger else (smaller,)


class Pass:
    """One forward pass, or several over the same examples.

    Args:
        number: of the pass.
        examples: of the pass.
        runs: its groups.
        plain: whether the step was given up before, so that what is shared stays whole; recomputed activations have to
            be the same, whatever happened since.

    Attributes:
        uses: calls of watched layers, by index of the parameter tensor.
        seen: how many of them were differentiated.
        held: contributions that wait for the others, by index.
    """

    def __init__(self, number: int, examples: int, runs: tuple[Run, ...], *, plain: bool = False) -> None:
        self.plain = plain
        self.number = number
        self.examples = examples
        self.runs = runs
        self.uses: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.held: dict[int, list[Sequence[Contribution]]] = {}

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
