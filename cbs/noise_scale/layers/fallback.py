"""Modules of any other type: what they compute is left as it is, their parameters are shared tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.layer import Layer

MIXES = "mixes the examples of a batch, so that a group has no gradient of its own"


@LAYERS.register("fallback")
class Fallback(Layer):
    """Watches a module without knowing what it computes.

    While it runs, its parameters are :class:`~cbs.noise_scale.layers.shared.Shared`, so that only the functions which
    they meet examples in run group by group. Random numbers are drawn as without it.
    """

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        return self.sharing.run(self.original, *args, **kwargs)


@LAYERS.register("batch_norm")
class BatchNorm(Fallback):
    """Watches batch normalisation in evaluation mode, with or without parameters."""

    types = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    alone = True

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        return tuple(name for name, _ in module.named_parameters())

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
