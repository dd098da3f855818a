"""Sharded parameters (``DTensor``): the part that a process holds, and norms across processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cbs.optimizers.trust_ratio.blocks import ParameterBlock


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, sharded or replicated."""
    # Called for every tensor in every step, and looking up a missing attribute is slow.
    return type(tensor) not in (Tensor, Parameter) and hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: the shard of a DTensor, any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def layout_of(tensor: Tensor) -> Any:
    """Return mesh and placements of a DTensor, equal for equal layouts; ``None`` for any other tensor."""
    return (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None  # type: ignore[attr-defined]


def pieces_of(tensor: Tensor) -> int:
    """Return the number of shards of a tensor."""
    if not is_sharded(tensor):
        return 1
    mesh, placements = layout_of(tensor)
    return math.prod(mesh.size(dim) for dim, place in enumerate(placements) if _split_dim(place) is not None)


def check_layout(param: Tensor) -> None:
    """Raise for gradients that are sharded differently from their parameter, and for parameters that are partial sums.

    Raises:
        RuntimeError: says what to do.
    """
    if not is_sharded(param) or param.grad is None:
        return
    if any(place.is_partial() for place in layout_of(param)[1]):
        raise RuntimeError("a parameter is a partial sum; redistribute it before building the optimizer")
    if layout_of(param.grad) != layout_of(param):
        raise RuntimeError("a gradient is sharded differently from its parameter; redistribute it before the step")


def merge_over_shards(block: ParameterBlock) -> None:
    """Replace norms of local shards by norms of whole tensors; one collective per sharded mesh dimension."""
    import torch.distributed as dist

    mesh, placements = block.layout
    for mesh_dim, place in enumerate(placements):
        dim = _split_dim(place)
        if dim is None:
            continue
        parts = []
        for stack, (whole, *lines) in zip(block.stacks, block.sizes, strict=True):
            # Split along dimension 0, a column lies on several processes; along dimension 1, a row does.
            split = (dim == 1 or (stack.inner and dim > 1), dim == 0)
            parts += [whole, *(line for line, flag in zip(lines, split, strict=False) if flag)]
        total = torch.cat([part.reshape(-1) for part in parts])
        group = mesh.get_group(mesh_dim)
        if block.measure.norm == "max":
            dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
        else:
            dist.all_reduce(total.square_(), dist.ReduceOp.SUM, group=group)
            total.sqrt_()
        for part, merged in zip(parts, total.split([part.numel() for part in parts]), strict=True):
            part.copy_(merged.view(part.shape))


def _split_dim(place: Any) -> int | None:
    return getattr(place, "dim", None)
