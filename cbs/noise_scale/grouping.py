"""Groups of examples that belong together, and the cells into which a forward pass is split."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import as_real

# Most numbers that are converted to float64 at a time: all logits of a language model might not fit into memory
PIECE = 2**24

Groups = int | Tensor | Callable[[tuple[Any, ...], dict[str, Any]], Tensor]
"""Groups of examples that belong together: the number of consecutive examples in a group; the group id of every example
of a forward pass, shape ``[examples]``; or a function of its ``(args, kwargs)`` that returns these ids."""


class Grouping:
    """Groups of examples in a forward pass, all of the same size.

    Args:
        groups: see :data:`Groups`.

    Raises:
        ConfigError: if it is none of these.
    """

    def __init__(self, groups: Groups = 1) -> None:
        whole = isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1
        if not (whole or callable(groups) or (isinstance(groups, Tensor) and groups.ndim == 1)):
            raise ConfigError(
                "groups must be the number of consecutive examples in a group, a tensor with the group of every "
                f"example, or a function of (args, kwargs) that returns such a tensor, got {groups!r}"
            )
        self._groups = groups

    def of(self, examples: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return the places of the examples of every group of a forward pass, shape ``[groups, members]``.

        Raises:
            ConfigError: if groups differ in size, or if there is not one group id per example.
        """
        if isinstance(self._groups, int):
            if examples % self._groups:
                raise ConfigError(f"{examples} examples of a forward pass do not divide into groups of {self._groups}")
            return torch.arange(examples).view(-1, self._groups)
        ids = self._groups if isinstance(self._groups, Tensor) else self._groups(args, kwargs)
        if ids.shape != (examples,):
            raise ConfigError(
                f"group ids have the shape {list(ids.shape)}, but the forward pass has {examples} examples; pass one "
                "id each"
            )
        _, places, counts = ids.detach().cpu().unique(return_inverse=True, return_counts=True)
        if bool((counts != counts[0]).any()):
            raise ConfigError(
                f"groups have {int(counts.min())} to {int(counts.max())} examples: all must have the same size"
            )
        return places.argsort(stable=True).view(-1, int(counts[0]))


class Cells:
    """Partition of the examples of a forward pass into cells of equal size.

    Consecutive cells form a part, which consists of whole groups; every cell of a part holds the same number of members
    of each of its groups. So the gradient noise between parts is that of groups, and the noise between the cells of a
    part is that of the members of a group.

    Args:
        units: places of the examples of every group, shape ``[groups, members]``.
        parts: least number of parts; ``None`` for one part per group and one cell per example.

    Attributes:
        examples: number of examples in the pass.
        number: number of cells.
        size: number of examples in a cell.
        of_part: number of cells in a part.
    """

    def __init__(self, units: Tensor, parts: int | None = None) -> None:
        groups, members = units.shape
        split = equal_parts(groups, parts or groups)
        self.of_part = members if parts is None else equal_parts(members, min(2, members))
        self.examples, self.number = units.numel(), split * self.of_part
        self.size = self.examples // self.number
        self._places = units.view(split, -1, self.of_part, members // self.of_part).transpose(1, 2).flatten(0, 1)

    def mask(self, cell: int) -> Tensor:
        """Return the mask of the examples in a cell, shape ``[examples]``."""
        return mask(self._places[cell], self.examples)


def mask(places: Tensor, examples: int) -> Tensor:
    """Return the mask of the examples at some places, shape ``[examples]``."""
    return torch.zeros(examples, dtype=torch.bool).index_fill_(0, places.flatten(), True)


def equal_parts(number: int, wanted: int) -> int:
    """Return the least divisor of ``number`` that is at least ``wanted``; ``number`` itself if that is smaller."""
    return next(parts for parts in range(min(wanted, number), number + 1) if number % parts == 0)


def copies(kept: Tensor, units: Tensor, seed: int) -> Tensor:
    """Return, for every example, the index of the example at the same position of one group drawn among the kept ones,
    whose mask is ``kept``; ``units`` has shape ``[groups, members]``, the others ``[examples]``."""
    there = units[kept[units[:, 0]]]
    drawn = there[torch.randint(len(there), (1,), generator=torch.Generator().manual_seed(seed))]
    return torch.empty_like(units.flatten()).index_copy_(0, units.flatten(), drawn.expand_as(units).flatten())


def pick(rows: Tensor, places: Sequence[int] | Tensor, examples: int) -> Tensor:
    """Return the rows of the examples at ``places``; every example has the same number of rows."""
    return rows.unflatten(0, (examples, -1))[torch.as_tensor(places).to(rows.device)].flatten(0, 1)


def norms(rows: Tensor, examples: int, other: Tensor | None = None) -> Tensor:
    """Return the norm of every example's rows, after ``other`` is subtracted: ``[examples]``, float64, on the CPU."""
    flat = [each.detach().reshape(examples, -1) for each in (rows, other) if each is not None]
    at_once = max(1, PIECE // max(1, flat[0].shape[1]))
    pieces = zip(*(each.split(at_once) for each in flat), strict=True)
    differences = (reduce(torch.sub, map(_wide, piece)) for piece in pieces)
    return torch.cat([torch.linalg.vector_norm(rows, dim=1).cpu() for rows in differences])


def _wide(rows: Tensor) -> Tensor:
    """Return real numbers in float64, on the CPU where the device has none."""
    real = as_real(rows).flatten(1)
    return (real.cpu() if real.device.type == "mps" else real).double()
