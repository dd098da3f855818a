"""Source that compares data-parallel ranks, under DDP and FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import data_parallel_groups, initialized, is_sharded, require_norms
from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.accumulation import Accumulation


@SOURCES.register("replicas")
class Replicas(Accumulation):
    """Source in which every backward pass of every rank is one group (McCandlish et al. 2018, appendix A.1).

    A tensor hook sees a rank's own gradient before ranks are averaged, so the communication of DDP or FSDP2 grows only
    by one small sum over ranks per step. Works with or without ``no_sync()`` or ``set_requires_gradient_sync(False)``,
    with mixed precision, and with communication hooks that round but do not compress; with hooks that compress, such as
    PowerSGD, the step is refused. If a model is neither DDP nor FSDP2, the training loop is assumed to average
    gradients over all ranks.

    Raises:
        ConfigError: if this process is not a rank, or the model is sharded in another way.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        everyone = dist.group.WORLD if initialized() else None
        if everyone is None:
            raise ConfigError(
                "source 'replicas' needs torch.distributed: start with torchrun and call init_process_group, "
                "or use source 'split'"
            )
        self.ranks = data_parallel_groups(self._model) or [everyone]
        self.micro_batches = 1 if any(dist.get_world_size(group) > 1 for group in self.ranks) else 2
        self._unsharded: dict[int, tuple[nn.Parameter, RemovableHandle]] = {}

    def _watch(self) -> list[RemovableHandle]:
        from torch.distributed.fsdp import FSDPModule

        sharding = [module for module in self._model.modules() if isinstance(module, FSDPModule)]
        if not sharding:
            return super()._watch()
        for geometry in self.geometries:
            require_norms(geometry)
        if not all(is_sharded(parameter) for parameter in self._parameters):
            raise ConfigError(
                "a parameter of the FSDP2 model is not sharded, because a forward pass leaves some unsharded: "
                "attach the noise scale before the first forward pass, or call reshard() on every FSDP2 module first"
            )
        handles = []
        indices = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        for module in sharding:
            places = [
                (owner, name, indices[id(parameter)])
                for owner in module.modules()
                for name, parameter in owner.named_parameters(recurse=False)
                if id(parameter) in indices
            ]
            handles.append(module.register_forward_pre_hook(self._follow(places)))
        return handles

    def detach(self) -> None:
        super().detach()
        for _, handle in self._unsharded.values():
            handle.remove()
        self._unsharded = {}

    def _follow(self, places: Sequence[tuple[nn.Module, str, int]]) -> Callable[[nn.Module, Any], None]:
        """Return a hook that runs after FSDP2's own and registers hooks on a module's unsharded parameters."""

        def follow(_module: nn.Module, _args: Any) -> None:
            for owner, name, index in places:
                whole = getattr(owner, name)
                known = self._unsharded.get(index)
                if known is None or known[0] is not whole:
                    if known is not None:
                        known[1].remove()
                    self._unsharded[index] = whole, whole.register_hook(self._hook(index))

        return follow
