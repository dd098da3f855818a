"""Recurrent layers and attention: one call per group, with a copy of the parameters."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.forward_pass import Pass
from cbs.noise_scale.layers.group_by_group import group_by_group
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.shared import Shared


@LAYERS.register("by_group")
class ByGroup(Layer):
    """Watches modules of torch that do not show what their parameters meet; examples come first.

    Autograd finds the gradient of every group. The groups draw their own random numbers, as many as without watching.
    """

    types: ClassVar[tuple[type[nn.Module] | str, ...]] = (nn.RNN, nn.GRU, nn.LSTM, nn.MultiheadAttention)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._signature = inspect.signature(self.original)
        self._inside = _Inside(self)
        self._latest: Pass | None = None

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        if isinstance(module, nn.LSTM) and not module.proj_size:
            return ()  # there is a faster kind
        return tuple(name for name, _ in module.named_parameters())

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        current = self._latest = self.recorder.enter(self.name)
        if current is None or self.sharing.places() is None:
            return self.original(*args, **kwargs)
        split = self._split(current, args, kwargs)
        if split is None:
            return self.given_up(*args, **kwargs)
        current.count(self.watched.values())
        return self._call(current, self.sharing.shared(current), *split)

    def given_up(self, *args: Any, **kwargs: Any) -> Any:
        """The output where examples cannot be told apart."""
        self.recorder.fail(
            f"layer {self.name!r} is given a packed sequence or one without a batch dimension; "
            "use the source 'accumulation'"
        )
        return self.original(*args, **kwargs)

    def examples_first(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        sequences = bool(args) and isinstance(args[0], Tensor) and args[0].ndim == 3
        return (args[0].transpose(0, 1), *args[1:]) if sequences and not self.module.batch_first else args

    def unwatched(self, *args: Any, **kwargs: Any) -> Any:
        draws = self.module.training and self.module.dropout
        split = self._split(self._latest, args, kwargs) if draws and self._latest else None
        if split is None or self._latest is None:
            return self.original(*args, **kwargs)
        # A pass that is run once more to compare has to draw the same random numbers.
        return self._call(self._latest, [], *split)

    def _call(self, current: Pass, shared: list[Shared], of_examples: dict[str, Any], others: dict[str, Any]) -> Any:
        """The output of the module when it runs on every group."""
        tensors, structure = tree_flatten(of_examples)
        names = [f"layer.{name}" for name in self.watched][: len(shared)]

        def call(values: Any) -> Any:
            arguments = tree_unflatten(list(values[: len(tensors)]), structure)
            arguments = others | {name: self._turned(name, value) for name, value in arguments.items()}
            parameters = dict(zip(names, values[len(tensors) :], strict=True))
            return self._turned("", functional_call(self._inside, parameters, (), arguments, tie_weights=False))

        values = [*tensors, *self.parameters[: len(shared)]]
        copies = [None] * len(tensors) + [entry.copies for entry in shared]
        return self._turned("", group_by_group(call, values, copies, current.groups, tensors[0].shape[0]))

    def _split(self, current: Pass, args: Any, kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Arguments with examples, first, and the others; ``None`` where it is not known which rows belong to which."""
        bound = self._signature.bind(*args, **kwargs).arguments
        first = next(iter(bound.values()))
        if not (isinstance(first, Tensor) and first.ndim == 3) or isinstance(first, Shared):
            return None
        rows = self.examples_first((first,))[0].shape[0]
        others = {
            name: value
            for name, value in bound.items()
            if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
            or (name == "attn_mask" and value.ndim == 2)
        }
        own = {name: self._turned(name, value, rows) for name, value in bound.items() if name not in others}
        fits = rows % current.examples == 0 and all(leaf.shape[0] == rows for leaf in tree_leaves(own))
        return (own, others) if fits else None

    def _turned(self, name: str, value: Any, rows: int | None = None) -> Any:
        """An argument, or without a name the output, with its examples first; so turned twice, as the module has it."""
        if name == "attn_mask":  # one per head of an example
            return value.flatten(0, 1) if rows is None else value.unflatten(0, (rows, -1))
        leaves, structure = tree_flatten(value)
        for place, leaf in enumerate(leaves):
            states = name == "hx" or (not name and place and isinstance(self.module, nn.RNNBase))
            weights = name == "key_padding_mask" or (not name and place)
            if isinstance(leaf, Tensor) and (states or not (weights or self.module.batch_first)):
                leaves[place] = leaf.transpose(0, 1)
        return tree_unflatten(leaves, structure)


class _Inside(nn.Module):
    """The original ``forward`` of a module, whose parameters are visible below ``layer``."""

    def __init__(self, watching: ByGroup) -> None:
        super().__init__()
        self.layer = watching.module
        self._forward = watching.original

    def forward(self, **arguments: Any) -> Any:
        return self._forward(**arguments)
