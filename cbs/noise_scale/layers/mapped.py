"""One function of the arguments of every group: under ``vmap``, or call by call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

FEW_GROUPS = 8
"""Groups up to which one call per group is faster than ``vmap``."""

_warn_of_slow_functions = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]


def mapped(
    call: Callable[[Sequence[Any]], Any],
    values: Sequence[Any],
    parts: Sequence[Tensor | None],
    groups: int,
    few: int = 0,
) -> Any:
    """A function of the arguments of every group, its results along a new first dimension.

    Args:
        call: the function, of flat arguments.
        values: its arguments.
        parts: what to give each group instead, along the first dimension; ``None`` for the same to all.
        groups: number of groups.
        few: groups up to which one call after the other is tried first, not one under ``vmap``.
    """
    places = [place for place, part in enumerate(parts) if part is not None]
    own = [part for part in parts if part is not None]

    def one(*own: Tensor) -> Any:
        merged = list(values)
        for place, part in zip(places, own, strict=True):
            merged[place] = part
        return call(merged)

    if groups > few:
        _warn_of_slow_functions(False)
        try:
            return vmap(one, randomness="different")(*own)
        except (RuntimeError, ValueError, NotImplementedError):
            pass  # vmap does not know every function; what is wrong with the function itself shows below.
        finally:
            _warn_of_slow_functions(True)
    found = [one(*part) for part in zip(*(part.unbind() for part in own), strict=True)]
    return tree_map(lambda *parts: torch.stack(parts) if isinstance(parts[0], Tensor) else parts[0], *found)
