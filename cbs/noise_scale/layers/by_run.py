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

from cbs.noise_scale.layers.forward_pass import Pass, Run

FEW_GROUPS = 8
"""Groups up to which one call per group is faster than ``vmap``."""

SLOW = "There is a performance drop"
"""What torch says of functions that ``vmap`` takes apart."""


def by_run(
    call: Callable[[Sequence[Any]], Any],
    values: Sequence[Any],
    copies: Sequence[Tensor | None],
    current: Pass,
    rows: int | None,
    *,
    in_place: bool = False,
) -> Any:
    """The results of all groups: one after the other where there are rows of examples, else along a new dimension.

    Args:
        call: the function, of flat arguments.
        values: its arguments.
        copies: one copy per group of those that are shared.
        current: the forward pass.
        rows: first dimension of the arguments with examples; ``None`` if there are none.
        in_place: whether the function changes an argument, which has to be done to all groups at once.
    """

    def part(value: Any, own: Tensor | None, run: Run, before: int) -> Tensor | None:
        if own is not None:
            return own[before : before + run.groups]
        if rows is None or not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] != rows:
            return None
        each = rows // current.examples
        return value[run.start * each : run.stop * each].unflatten(0, (run.groups, run.size * each))

    def joined(*parts: Any) -> Any:
        if not isinstance(parts[0], Tensor):
            return parts[0]
        parts = parts if rows is None else tuple(part.flatten(0, 1) for part in parts)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    found, before = [], 0
    for run in current.runs:
        parts = [part(value, own, run, before) for value, own in zip(values, copies, strict=True)]
        found.append(_stacked(call, values, parts, run.groups > FEW_GROUPS or in_place))
        before += run.groups
    return tree_map(joined, *found)


def _stacked(
    call: Callable[[Sequence[Any]], Any], values: Sequence[Any], parts: Sequence[Tensor | None], many: bool
) -> Any:
    """The results of equally large groups along a new first dimension, ``parts`` in the place of some values."""
    places = [place for place, part in enumerate(parts) if part is not None]
    own = [part for part in parts if part is not None]

    def one(*own: Tensor) -> Any:
        merged = list(values)
        for place, part in zip(places, own, strict=True):
            merged[place] = part
        return call(merged)

    if many:
        # vmap does not know every function; what is wrong with the function itself shows below.
        with suppress(RuntimeError, ValueError, NotImplementedError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", SLOW)
            return vmap(one, randomness="different")(*own)
    found = [one(*part) for part in zip(*(part.unbind() for part in own), strict=True)]
    return tree_map(lambda *parts: torch.stack(parts) if isinstance(parts[0], Tensor) else parts[0], *found)
