"""One function of the arguments of every group: under ``vmap``, or call by call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from cbs.noise_scale.grouping import Cells

FEW_GROUPS = 8
"""Groups up to which one call per group is faster than ``vmap``."""


def group_by_group(
    call: Callable[[Sequence[Any]], Any],
    values: Sequence[Any],
    copies: Sequence[Tensor | None],
    cells: Cells,
    rows: int | None,
    *,
    in_place: bool = False,
) -> Any:
    """The results of all groups: one after the other where there are rows of examples, else along a new dimension.

    Args:
        call: the function, of flat arguments.
        values: its arguments.
        copies: one copy per group of those that are shared.
        cells: the groups.
        rows: first dimension of the arguments with examples; ``None`` if there are none.
        in_place: whether the function changes an argument, which has to be done to all groups at once.
    """
    parts: dict[int, Tensor] = {}
    for place, (value, own) in enumerate(zip(values, copies, strict=True)):
        if own is not None:
            parts[place] = own
        elif rows is not None and isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            if in_place and not cells.in_order:
                raise ValueError("it changes an argument whose examples are in another order than their groups")
            parts[place] = cells.sorted(value).unflatten(0, (cells.number, -1))

    def one(*own: Tensor) -> Any:
        merged = list(values)
        for place, part in zip(parts, own, strict=True):
            merged[place] = part
        return call(merged)

    def stacked(*found: Any) -> Any:
        return torch.stack(found) if isinstance(found[0], Tensor) else found[0]

    def joined(whole: Any) -> Any:
        return cells.restored(whole.flatten(0, 1)) if isinstance(whole, Tensor) and rows is not None else whole

    if cells.number > FEW_GROUPS or in_place:
        # vmap does not know every function; what is wrong with the function itself shows below.
        with suppress(RuntimeError, ValueError, NotImplementedError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return tree_map(joined, vmap(one, randomness="different")(*parts.values()))
    found = [one(*own) for own in zip(*(part.unbind() for part in parts.values()), strict=True)]
    return tree_map(joined, tree_map(stacked, *found))
