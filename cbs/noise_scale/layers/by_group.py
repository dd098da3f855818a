"""Recurrent layers and attention: one call per group, with a copy of the parameters."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.shared import Shared


@LAYERS.register("by_group")
class ByGroup(Layer):
    """Watches modules of torch that do not show what their parameters meet.

    Autograd finds the gradient of every group. Groups would draw random numbers of their own, and train another step.
    """

    types: ClassVar[tuple[type[nn.Module] | str, ...]] = (nn.RNN, nn.GRU, nn.LSTM, nn.MultiheadAttention)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sharing.known = True
        self._signature = inspect.signature(self.original)

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        faster = cls is ByGroup and isinstance(module, nn.LSTM) and not module.proj_size  # there is a kind for these
        return () if faster else tuple(name for name, _ in module.named_parameters())

    @classmethod
    def refuse(cls, module: nn.Module) -> str | None:
        draws = module.training and module.dropout and getattr(module, "num_layers", 2) > 1
        return "has dropout, and its groups would draw other random numbers than the whole batch" if draws else None

    def drawing(self) -> bool:
        """Give up this step where the module draws random numbers now."""
        why = self.refuse(self.module)
        if why is not None:
            self.recorder.fail(
                f"layer {self.name!r} ({type(self.module).__name__}) {why}; use the source 'accumulation'"
            )
        return why is not None

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        if self.drawing():
            return self.original(*args, **kwargs)
        arguments = self._signature.bind(*args, **kwargs).arguments
        first = next(iter(arguments.values()))
        if not self.has_examples(first):
            self.recorder.fail(
                f"layer {self.name!r} is given a packed sequence or one without a batch dimension; "
                "use the source 'accumulation'"
            )
            return self.original(*args, **kwargs)
        rows = first.shape[0 if self.module.batch_first else 1]

        def forward(arguments: dict[str, Any]) -> Any:
            turned = {name: self._turned(name, value) for name, value in arguments.items()}
            return self._turned("", self.original(**turned))

        turned = {name: self._turned(name, value, rows) for name, value in arguments.items()}
        weights = getattr(self.module, "_flat_weights", None)
        try:
            return self._turned("", self.sharing.run(forward, turned))
        finally:
            if weights is not None:  # torch's list of the weights of the latest forward pass
                self.module._flat_weights = weights

    def has_examples(self, input: Any) -> bool:
        """Whether it is known where the examples of the first argument are."""
        return isinstance(input, Tensor) and input.ndim == 3 and not isinstance(input, Shared)

    def examples_first(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        turn = bool(args) and self.has_examples(args[0]) and not self.module.batch_first
        return (args[0].transpose(0, 1), *args[1:]) if turn else args

    def _turned(self, name: str, value: Any, rows: int | None = None) -> Any:
        """An argument, or without a name the output, with its examples first; so turned twice, as the module has it."""
        if name == "attn_mask" and value is not None:  # one for all examples, or one per head of an example
            if rows is None:
                return value[0] if len(value) == 1 and value.ndim == 3 else value.flatten(0, 1)
            return value[None] if value.ndim == 2 else value.unflatten(0, (rows, -1))
        leaves, structure = tree_flatten(value)
        for place, leaf in enumerate(leaves):
            states = name == "hx" or (not name and place and isinstance(self.module, nn.RNNBase))
            weights = name == "key_padding_mask" or (not name and place)
            if isinstance(leaf, Tensor) and (states or not (weights or self.module.batch_first)):
                leaves[place] = leaf.transpose(0, 1)
        return tree_unflatten(leaves, structure)
