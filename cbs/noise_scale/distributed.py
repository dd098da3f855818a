r"""Ranks of data-parallel training: which they are, and sums over them.

DDP and FSDP2 give every rank the mean of the W ranks' gradients. A rank's own mean gradient over its :math:`B_r`
examples therefore enters with weight 1/W, however large its batch, and the noise of the step's gradient is
:math:`tr(\Sigma) W^{-2} \sum_r 1/B_r`: that of a batch of :math:`B = W^2 / \sum_r 1/B_r` examples, which is the number
of examples of the step where all ranks have equally many.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.base import Geometry, as_real
from cbs.noise_scale.moments import Sizes
from cbs.noise_scale.small_batch import Small

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

FLATTENED = 2**14
"""Tensors of at least that many elements are summed in place; smaller ones share one call."""


def initialized() -> bool:
    """Whether this process is a rank of a process group."""
    return dist.is_available() and dist.is_initialized()


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor, of which this rank may hold a part only."""
    if not initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def data_parallel_groups(model: nn.Module) -> list[ProcessGroup]:
    """Process groups, to be summed over one after the other, whose ranks average the gradients of a model.

    One for DDP and FSDP2, two for FSDP2 with a replicated dimension (HSDP), none for a model that is not distributed.

    Raises:
        ConfigError: if the model is sharded in a way other than by FSDP2 over one mesh.
    """
    if not initialized():
        return []
    from torch.distributed.fsdp import FullyShardedDataParallel

    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise ConfigError("FullyShardedDataParallel flattens parameters: shard the model with fully_shard (FSDP2)")
        if isinstance(module, DistributedDataParallel):
            return [module.process_group]
    sharded = [parameter for parameter in model.parameters() if is_sharded(parameter)]
    if not sharded:
        return []
    mesh = sharded[0].device_mesh
    for parameter in sharded:
        if parameter.device_mesh != mesh or len(sharding_groups(parameter)) > 1:
            raise ConfigError(
                "parameters are sharded over more than data-parallel ranks (tensor or expert parallelism): "
                "the noise scale supports FSDP2 over one mesh"
            )
    return [mesh.get_group(dimension) for dimension in range(mesh.ndim)]


def combine(small: Small, groups: Sequence[ProcessGroup]) -> Small:
    r"""The small-batch side over all ranks, from what each of them saw of its own backward passes.

    A collective: every rank calls it, and every rank gets the same. Two reductions at most for norms, whatever the
    number of parameter tensors. A rank's contributions add up to its own mean gradient, before ranks are averaged;
    those of the result add up to the average. ``sizes.big`` is :math:`W^2 / \sum_r 1/B_r`, see the module.

    Args:
        small: of this rank; its tensors may be overwritten.
        groups: summed over one after the other, see :func:`data_parallel_groups`; none leaves ``small`` as it is.
    """
    if not groups:
        return small
    entries, structure = tree_flatten(small.statistics)
    device = entries[0].device if entries else torch.device("cpu")
    sizes = small.sizes
    counts = [1.0, sizes.big, 1.0 / sizes.big, sizes.groups, 1.0 / sizes.small]
    total, *entries = sum_over_ranks([torch.tensor(counts, dtype=torch.float64, device=device), *entries], groups)
    ranks, examples, inverse, number, inverse_size = total.tolist()
    effective = ranks**2 / inverse
    if math.isclose(effective, examples, rel_tol=1e-12):
        effective = int(examples)
    return Small(
        statistics=tree_unflatten([entry.div_(ranks) for entry in entries], structure),
        sizes=Sizes(small=ranks / inverse_size, big=effective, groups=int(number)),
    )


def whole_statistics(geometry: Geometry, gradients: Mapping[int, Tensor]) -> list[Tensor]:
    """T of every gradient, ordinary or sharded; the same on all ranks.

    A collective if a gradient is sharded: the squared norms of the parts are summed over the ranks that hold them, in
    one reduction for all. Ordinary gradients cost nothing beyond ``geometry.statistic``.

    Args:
        geometry: to measure in.
        gradients: by index of the parameter tensor.

    Raises:
        ConfigError: if a gradient is sharded and the geometry needs more of it than its norm, or is a sum over ranks
            that is still to be made.
    """
    results: dict[int, Tensor] = {}
    parts: defaultdict[tuple[ProcessGroup, ...], list[int]] = defaultdict(list)
    for index, gradient in gradients.items():
        if is_sharded(gradient):
            require_norms(geometry)
            if any(placement.is_partial() for placement in gradient.placements):
                raise ConfigError("a gradient is a sum over ranks still to be made (Partial): redistribute it first")
            parts[sharding_groups(gradient)].append(index)
            gradient = gradient.to_local()
        results[index] = geometry.statistic(index, as_real(gradient)[None])
    for groups, indices in parts.items():
        sums = sum_over_ranks([results[index] for index in indices], groups)
        results.update(zip(indices, sums, strict=True))
    return list(results.values())


def require_norms(geometry: Geometry) -> None:
    """Refuse a geometry that needs more than squared norms.

    Raises:
        ConfigError: says why and what works.
    """
    if not geometry.norms_suffice:
        raise ConfigError(
            f"geometry {geometry.name!r} needs whole gradients, and those of a sharded model are nowhere whole: "
            "use geometry 'l2', or DDP"
        )


def sum_over_ranks(tensors: Sequence[Tensor], groups: Sequence[ProcessGroup]) -> list[Tensor]:
    """Sum of each tensor over the ranks of one group after the other, in its own dtype.

    Args:
        tensors: as many on every rank, of the same shapes; large ones are overwritten.
        groups: process groups.
    """
    short = [tensor for tensor in tensors if tensor.numel() < FLATTENED]
    flat = torch.cat([tensor.to(tensors[0].device, torch.float64).reshape(-1) for tensor in short] or [tensors[0][:0]])
    for group in groups:
        if flat.numel():
            dist.all_reduce(flat, group=group)
        for tensor in tensors:
            if tensor.numel() >= FLATTENED:
                dist.all_reduce(tensor, group=group)
    pieces = iter(flat.split([tensor.numel() for tensor in short]))
    return [
        next(pieces).reshape(tensor.shape).to(tensor.device, tensor.dtype) if tensor.numel() < FLATTENED else tensor
        for tensor in tensors
    ]


def sharding_groups(tensor: Tensor) -> tuple[ProcessGroup, ...]:
    """Process groups that a tensor is spread over; none of an ordinary one."""
    if not is_sharded(tensor):
        return ()
    return tuple(
        tensor.device_mesh.get_group(dimension)
        for dimension, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )
