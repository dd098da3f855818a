"""FSDP2: every rank holds a part of the weights, of their gradients and of the optimizer's state.

Checkpoints hold whole tensors, so that a trial goes on on any number of workers, sharded or not; they are put together
one by one, and the main memory of the first rank's node has to hold them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cbs.errors import ConfigError
from cbs.trial.config import TrialConfig

SHARDABLE = (
    "adam", "adamw", "lamb", "lars", "lion", "merit", "muon", "schedule_free", "sgd",
    "signsgd", "signum",
)  # fmt: skip
"""Optimizers whose steps on sharded weights are those on whole ones, also after a checkpoint. Of the others, Shampoo,
SOAP and Adafactor need whole matrices, and those of other people might go wrong in silence."""


def check_shardable(config: TrialConfig) -> None:
    """Refuse a configuration whose steps would differ on sharded weights.

    Raises:
        ConfigError: with what to change.
    """
    if config.optimizer.name not in SHARDABLE:
        raise ConfigError(
            f"optimizer {config.optimizer.name!r} cannot step on sharded weights: leave out shard=true, or use one of "
            f"{', '.join(SHARDABLE)}"
        )
    if config.averaging is not None:
        raise ConfigError("averages of sharded weights are not made: leave out shard=true, or averaging")
    if config.compile:
        raise ConfigError("sharded models are not compiled: leave out shard=true, or compile")


def sharded(model: nn.Module, device: torch.device, world: int) -> nn.Module:
    """The model with every layer of its lists on its own, so that no rank holds all of them whole at a time, and then
    what is left; each part goes to the device when it has been cut."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList | nn.Sequential) and module is not model:
            for layer in module:
                if next(layer.parameters(), None) is not None:
                    fully_shard(layer, mesh=mesh)
    # Left whole after a validation, what no layer holds would miss what an optimizer does to its parts before training.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model


def whole(state: Any, *, keep: bool = True) -> Any:
    """A state with whole tensors in place of sharded ones. A collective.

    Args:
        state: of a model or an optimizer, the same on all ranks.
        keep: whether this rank wants them.
    """
    from torch.distributed.tensor import DTensor

    def put_together(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        gathered = leaf.full_tensor()
        return gathered if keep else gathered.new_empty(0)

    return tree_map(put_together, state)


def parted(state: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors, sharded like those of the same name."""
    return {name: _cut(value, like.get(name)) for name, value in state.items()}


def parted_state(state: dict[str, Any], parameters: Iterable[Tensor]) -> dict[str, Any]:
    """An optimizer's state of whole tensors, cut where they have the shape of their parameter.

    Args:
        state: of ``optimizer.state_dict()``.
        parameters: in the order of the optimizer's groups.
    """
    order = list(parameters)
    entries = {
        index: {
            name: _cut(value, order[index])
            if isinstance(value, Tensor) and value.shape == order[index].shape
            else value
            for name, value in of.items()
        }
        for index, of in state["state"].items()
    }
    return state | {"state": entries}


def _cut(value: Tensor, like: Tensor | None) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return value
    # every rank has read the whole: nothing is sent
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
