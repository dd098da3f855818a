r"""Process groups of data-parallel training, and sums over their ranks.

DDP and FSDP2 give every rank the mean of the gradients of W ranks. Where the loss of each is the mean over its own
:math:`B_r` examples, a rank has the weight 1/W, however large its batch, and the noise of the step's gradient is
:math:`tr(\Sigma) W^{-2} \sum_r 1/B_r`. This is the noise of a batch of :math:`B = W^2 / \sum_r 1/B_r` examples, which
equals the number of examples in the step where all ranks have equally many. Where it is multiplied by
:math:`W B_r / \sum_r B_r`, all examples of a step weigh the same. The gradients do not show which of both it was.
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
from cbs.noise_scale.geometries import Geometry, as_real
from cbs.noise_scale.moments import Sizes
from cbs.noise_scale.passes import Weights
from cbs.noise_scale.small_batch import Small

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

FLATTENED = 2**14  # Tensors of at least this many elements are reduced in place; smaller ones share one reduction


def initialized() -> bool:
    """Return whether this process is a rank of a process group."""
    return dist.is_available() and dist.is_initialized()


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor, of which this rank may hold only a part."""
    if not initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def data_parallel_groups(model: nn.Module) -> list[ProcessGroup]:
    """Return the process groups whose ranks average the gradients of a model; sums go over one group after the other.

    There is one group for DDP and FSDP2, two for FSDP2 with a replicated dimension (HSDP), none without ranks.

    Raises:
        ConfigError: if the model is sharded in another way than by FSDP2 over one mesh.
    """
    if not initialized():
        return []
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise ConfigError("FullyShardedDataParallel flattens parameters: shard the model with fully_shard (FSDP2)")
        if isinstance(module, DistributedDataParallel):
            return [module.process_group]
    sharded = [parameter for parameter in model.parameters() if is_sharded(parameter)]
    if not sharded:
        return []
    mesh, by_fsdp = sharded[0].device_mesh, any(isinstance(module, FSDPModule) for module in model.modules())
    for parameter in sharded:
        if not by_fsdp or parameter.device_mesh != mesh or len(sharding_groups(parameter)) > 1:
            raise ConfigError(
                "parameters are sharded over more than data-parallel ranks (tensor or expert parallelism): "
                "the noise scale supports FSDP2 over one mesh"
            )
    return [mesh.get_group(dimension) for dimension in range(mesh.ndim)]


UNEQUAL = (
    "ranks have {:.0f} examples in a step, but not the same number each: pass weights='ranks' if the loss of each is "
    "the mean over its own examples, weights='examples' if it was multiplied by its share of all examples times the "
    "number of ranks, or give all ranks equally many"
)


def combine(small: Small, groups: Sequence[ProcessGroup], weights: Weights | None = None) -> Small:
    r"""Return the small-batch side over all ranks, from what each rank measured in its own backward passes.

    A collective: every rank has to call it, and all get the same result. At most two reductions for norms, whatever the
    number of parameter tensors. The contributions on a rank add up to the rank's own mean gradient, before ranks are
    averaged; those of the result add up to the average. ``sizes.big`` is the effective batch size, see the module.

    Args:
        small: small-batch side of this rank; its tensors may be overwritten.
        groups: process groups to sum over, see :func:`data_parallel_groups`; with none ``small`` is returned unchanged.
        weights: what weighs the same where ranks have unequal numbers of examples.

    Raises:
        ConfigError: on every rank, if they have unequal numbers of examples, and ``weights`` does not say how they
            weigh.
    """
    if not groups:
        return small
    entries, structure = tree_flatten(small.statistics)
    device = entries[0].device if entries else torch.device("cpu")
    sizes = small.sizes
    counts = [1.0, sizes.big, 1.0 / sizes.big, sizes.groups, 1.0 / sizes.small]
    if weights == "examples":  # a sum over groups of T(c)/b has to get one factor for all ranks
        entries = [entry.div_(sizes.big) for entry in entries]
    total, *entries = sum_over_ranks([torch.tensor(counts, dtype=torch.float64, device=device), *entries], groups)
    ranks, examples, inverse, number, inverse_size = total.tolist()
    effective, small_size = ranks**2 / inverse, ranks / inverse_size
    # Both are sums of floats: ranks of equal size agree up to rounding.
    if math.isclose(effective, examples, rel_tol=1e-12):
        effective = int(examples)
    elif weights is None:
        raise ConfigError(UNEQUAL.format(examples))
    if weights == "examples":
        effective, small_size = int(examples), examples / number
        entries = [entry.mul_(examples / ranks) for entry in entries]
    return Small(
        statistics=tree_unflatten([entry.div_(ranks) for entry in entries], structure),
        sizes=Sizes(small=small_size, big=effective, groups=int(number)),
    )


def whole_statistics(geometry: Geometry, gradients: Mapping[int, Tensor]) -> list[Tensor]:
    """Return the statistic T of every gradient, ordinary or sharded, with the same result on all ranks.

    A collective if a gradient is sharded: the squared norms of the shards are summed over the ranks that hold them, in
    one reduction for each set of process groups. Ordinary gradients cost nothing beyond ``geometry.statistic``.

    Raises:
        ConfigError: if a gradient is sharded and the geometry needs more than its norm, or if the sum over ranks of a
            gradient is still pending (a Partial placement).
    """
    results: dict[int, Tensor] = {}
    parts: defaultdict[tuple[ProcessGroup, ...], list[int]] = defaultdict(list)
    for index, gradient in gradients.items():
        if is_sharded(gradient):
            require_norms(geometry)
            if any(placement.is_partial() for placement in gradient.placements):
                raise ConfigError(
                    "a gradient is a pending sum over ranks (Partial placement): call redistribute() on it first"
                )
            parts[sharding_groups(gradient)].append(index)
            gradient = gradient.to_local()
        results[index] = geometry.statistic(index, as_real(gradient)[None])
    for groups, indices in parts.items():
        sums = sum_over_ranks([results[index] for index in indices], groups)
        results.update(zip(indices, sums, strict=True))
    return list(results.values())


def require_norms(geometry: Geometry) -> None:
    """Raise if a geometry needs more than squared norms of gradients.

    Raises:
        ConfigError: says why the geometry does not work and which ones do.
    """
    if not geometry.norms_suffice:
        raise ConfigError(
            f"geometry {geometry.name!r} needs whole gradients, and no rank holds those of a sharded model: "
            "use geometry 'l2', or DDP"
        )


def sum_over_ranks(tensors: Sequence[Tensor], groups: Sequence[ProcessGroup]) -> list[Tensor]:
    """Return the sum of each tensor, in its own dtype, over the ranks of one process group after the other; tensors
    have the same shapes on every rank, and large ones are overwritten."""
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
    """Return the process groups that a tensor is sharded over; none for an ordinary tensor."""
    if not is_sharded(tensor):
        return ()
    return tuple(
        tensor.device_mesh.get_group(dimension)
        for dimension, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )
