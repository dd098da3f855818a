"""Batch normalisation, which mixes the examples of a batch unless it uses what it has learnt of earlier ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.fallback import Fallback

MIXES = "mixes the examples of a batch, so that a group has no gradient of its own"


@LAYERS.register("batch_norm")
class BatchNorm(Fallback):
    """Watches batch normalisation in evaluation mode, with or without parameters."""

    types = (_BatchNorm, nn.SyncBatchNorm)
    alone = True

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        return tuple(module._parameters)

    @classmethod
    def refuse(cls, module: nn.Module) -> str | None:
        return MIXES if module.training or module.running_mean is None else None

    def watch(self, input: Tensor) -> Any:
        if self.refuse(self.module):
            self.recorder.fail(
                f"layer {self.name!r} ({type(self.module).__name__}) is in training mode now, where it {MIXES}; "
                "use the source 'accumulation'"
            )
            return self.original(input)
        return super().watch(input)
