"""Which examples belong together, and the cells that a pass over them is split into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.errors import ConfigError

Groups = int | Tensor | Callable[[tuple[Any, ...], dict[str, Any]], Tensor]
"""How many neighbours make a group; or the group of every example of a pass, ``[examples]``; or that as a function of
the arguments ``(args, kwargs)`` of the forward pass."""


class Grouping:
    """The groups of examples of a forward pass, all equally large.

    Args:
        groups: see :data:`Groups`.

    Raises:
        ConfigError: if it is none of these.
    """

    def __init__(self, groups: Groups = 1) -> None:
        whole = isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1
        if not (whole or callable(groups) or (isinstance(groups, Tensor) and groups.ndim == 1)):
            raise ConfigError(
                "groups must be the number of examples that belong together, a tensor with the group of every example, "
                f"or a function of (args, kwargs) that returns one, got {groups!r}"
            )
        self._groups = groups

    def of(self, examples: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Tensor | None]:
        """Examples of a group, and the examples of a pass group by group; ``None`` where they are already.

        Raises:
            ConfigError: if groups differ in size, or ids are not one for every example.
        """
        if isinstance(self._groups, int):
            if examples % self._groups:
                raise ConfigError(f"{examples} examples of a pass are no whole number of groups of {self._groups}")
            return self._groups, None
        ids = self._groups if isinstance(self._groups, Tensor) else self._groups(args, kwargs)
        if ids.shape != (examples,):
            raise ConfigError(f"group ids have the shape {list(ids.shape)} for {examples} examples of a pass")
        _, places, counts = ids.detach().cpu().unique(return_inverse=True, return_counts=True)
        if bool((counts != counts[0]).any()):
            raise ConfigError(
                f"groups of {int(counts.min())} to {int(counts.max())} examples: all must be equally large"
            )
        return int(counts[0]), places.argsort(stable=True)


class Cells:
    """Examples of a pass in equally large cells: every so many of them make a part of whole groups, and each holds as
    many members of every group of its part.

    The gradient noise between parts is that of groups, within a part it is that of the members of a group.

    Args:
        examples: of the pass.
        members: examples of a group.
        order: of the examples, group by group; ``None`` where they are in order.
        parts: least number of parts of whole groups; ``None`` for one per group, and a cell per example.

    Attributes:
        examples: of the pass.
        number: of all cells.
        size: examples of a cell.
        of_part: cells of a part.
    """

    def __init__(self, examples: int, members: int = 1, order: Tensor | None = None, parts: int | None = None) -> None:
        groups = examples // members
        split = equal_parts(groups, parts or groups) if groups else 0
        self.of_part = members if parts is None else equal_parts(members, min(2, members))
        self.examples, self.number = examples, split * self.of_part
        self.size = examples // self.number if self.number else 0
        self._order = torch.arange(examples) if order is None else order
        if self.number:
            places = self._order.view(split, -1, self.of_part, members // self.of_part)
            self._order = places.transpose(1, 2).flatten()

    def mask(self, cell: int) -> Tensor:
        """Which examples a cell has, shape ``[examples]``."""
        chosen = torch.zeros(self.examples, dtype=torch.bool)
        chosen[self._order[cell * self.size : (cell + 1) * self.size]] = True
        return chosen


def equal_parts(number: int, wanted: int) -> int:
    """The least number of equally large parts that is at least what is wanted; one for each where there are fewer."""
    return next(parts for parts in range(min(wanted, number), number + 1) if number % parts == 0)


def copies(kept: Tensor, members: int, order: Tensor | None, seed: int) -> Tensor:
    """For every example the one in the same place of a group that is drawn of those that are kept, shape
    ``[examples]``."""
    units = (torch.arange(len(kept)) if order is None else order).view(-1, members)
    there = units[kept[units[:, 0]]]
    drawn = there[torch.randint(len(there), (1,), generator=torch.Generator().manual_seed(seed))]
    return torch.empty_like(units.flatten()).index_copy_(0, units.flatten(), drawn.expand_as(units).flatten())


def pick(rows: Tensor, places: Sequence[int] | Tensor, examples: int) -> Tensor:
    """The rows of some examples, equally many of each."""
    return rows.unflatten(0, (examples, -1))[torch.as_tensor(places).to(rows.device)].flatten(0, 1)
