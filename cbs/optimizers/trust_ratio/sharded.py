"""Sharded parameters (``DTensor``): what a process holds of them, and norms across processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cbs.optimizers.trust_ratio.blocks import ParameterBlock


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, be it sharded or replicated."""
    # Asked of every tensor in every step, and looking for an attribute that is not there is slow.
    return type(tensor) not in (Tensor, Parameter) and hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: the shard of a DTensor, any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def layout_of(tensor: Tensor) -> Any:
    """Mesh and placements of a DTensor, equal for those that lie alike; ``None`` for any other tensor."""
    return (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None  # type: ignore[attr-defined]


def pieces_of(tensor: Tensor) -> int:
    """Into how many pieces a tensor is split."""
    if not is_sharded(tensor):
        return 1
    mesh, placements = layout_of(tensor)
    return math.prod(mesh.size(dim) for dim, place in enumerate(placements) if _split_dim(place) is not None)


def check_layout(param: Tensor) -> None:
    """Refuse gradients that lie unlike their parameter, and parameters whose pieces are yet to be summed.

    Raises:
        RuntimeError: with what to do.
    """
    if not is_sharded(param) or param.grad is None:
        return
    if any(place.is_partial() for place in layout_of(param)[1]):
        raise RuntimeError("a parameter is a partial sum; redistribute it before building the optimizer")
    if layout_of(param.grad) != layout_of(param):
        raise RuntimeError("a gradient is sharded unlike its parameter; redistribute it before the step")


def merge_over_shards(block: ParameterBlock) -> None:
    """Norms of whole tensors in place of those of the pieces held here; a collective per sharded mesh dimension."""
    import torch.distributed as dist

    mesh, placements = block.layout
    for mesh_dim, place in enumerate(placements):
        dim = _split_dim(place)
        if dim is None:
            continue
        parts = []
        for stack, (whole, *lines) in zip(block.stacks, block.sizes, strict=True):
            # Split along dimension 0, the entries of a column lie on several processes; along dimension 1, of a row.
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
