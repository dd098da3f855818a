"""Sharding with FSDP2: every rank holds a part of the weights, their gradients and the optimizer's state.

Checkpoints hold whole tensors, so that a trial can continue on any number of workers, sharded or not. The tensors are
gathered one by one, and have to fit into the main memory of the first rank's node.
"""

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
"""Optimizers whose steps on sharded weights equal those on whole ones, also after a checkpoint. Of the others, Shampoo,
SOAP and Adafactor need whole matrices, and other people's optimizers might be wrong without an error."""


def check_shardable(config: TrialConfig) -> None:
    """Raise for a configuration whose steps would differ on sharded weights.

    Raises:
        ConfigError: says what to change.
    """
    if config.optimizer.name not in SHARDABLE:
        raise ConfigError(
            f"optimizer {config.optimizer.name!r} cannot step on sharded weights: leave out shard=true, or use one of "
            f"{', '.join(SHARDABLE)}"
        )
    if config.averaging is not None:
        raise ConfigError("sharded weights cannot be averaged: leave out shard=true, or averaging")
    if config.compile:
        raise ConfigError("sharded models cannot be compiled: leave out shard=true, or compile")


def sharded(model: nn.Module, device: torch.device, world: int) -> nn.Module:
    """Return the model sharded over ranks, on the device.

    Every layer in a list of layers is sharded by itself, so that no rank holds all of them at once, and then the rest.
    Each part moves to the device when it has been sharded.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList | nn.Sequential) and module is not model:
            for layer in module:
                if next(layer.parameters(), None) is not None:
                    fully_shard(layer, mesh=mesh)
    # Otherwise parameters outside layers stay gathered after a validation and miss the optimizer's later updates.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model


def whole(state: Any, *, keep: bool = True) -> Any:
    """Return a state with whole tensors in place of sharded ones. A collective.

    Args:
        state: state of a model or an optimizer, the same on all ranks.
        keep: whether this rank needs the tensors; otherwise they are replaced by empty ones.
    """
    from torch.distributed.tensor import DTensor

    def put_together(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        gathered = leaf.full_tensor()
        return gathered if keep else gathered.new_empty(0)

    return tree_map(put_together, state)


def parted(state: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors sharded like those of the same name in ``like``."""
    return {name: _cut(value, like.get(name)) for name, value in state.items()}


def parted_state(state: dict[str, Any], parameters: Iterable[Tensor]) -> dict[str, Any]:
    """Return an optimizer's state with tensors sharded where they have the shape of their parameter.

    Args:
        state: result of ``optimizer.state_dict()`` with whole tensors.
        parameters: parameters in the order of the optimizer's groups.
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
    # Every rank has the whole tensor, so nothing has to be sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
