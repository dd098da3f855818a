"""Recurrent layers and attention: one call per group, with a copy of the parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.forward_pass import Pass
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.mapped import FEW_GROUPS, mapped
from cbs.noise_scale.layers.shared import Shared


@LAYERS.register("by_group")
class ByGroup(Layer):
    """Watches modules of torch that do not show what their parameters meet; examples come first.

    Autograd finds the gradient of every group. The groups draw their own random numbers, as many as without watching.
    """

    types = (nn.RNN, nn.GRU, nn.LSTM, nn.MultiheadAttention)

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
        own = [self.module.get_parameter(name) for name in self.watched]
        if any(here is not mine for here, mine in zip(own, self.parameters, strict=True)):
            return self.original(*args, **kwargs)
        current = self._latest = self.recorder.enter(self.name)
        if current is None:
            return self.original(*args, **kwargs)
        if not self._splits(current, args, kwargs):
            self.recorder.fail(
                f"cannot tell the examples in layer {self.name!r} ({type(self.module).__name__}) apart; use "
                "batches of sequences that are not packed, or use the source 'accumulation'"
            )
            return self.original(*args, **kwargs)
        current.count(self.watched.values())
        return self._call(current, self.sharing.copies(current), args, kwargs)

    def examples_first(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args if self.module.batch_first else transposed(args)

    def unwatched(self, *args: Any, **kwargs: Any) -> Any:
        draws = self.module.training and self.module.dropout
        if not draws or self._latest is None or not self._splits(self._latest, args, kwargs):
            return self.original(*args, **kwargs)
        # A pass that is run once more to compare has to draw the same random numbers.
        return self._call(self._latest, None, args, kwargs)

    def _call(self, current: Pass, copies: list[Tensor] | None, args: Any, kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs).arguments
        names = [f"layer.{name}" for name in self.watched]
        tensors, structure = tree_flatten(bound)
        dims = [dim for name, value in bound.items() for dim in self._dims(name, value)]

        def call(values: Any) -> Any:
            arguments = tree_unflatten(list(values[: len(tensors)]), structure)
            parameters = dict(zip(names, values[len(tensors) :], strict=True)) if copies else {}
            return functional_call(self._inside, parameters, (), arguments, tie_weights=False)

        values = [*tensors, *self.parameters] if copies else tensors
        found, before = [], 0
        for run in current.runs:
            parts: list[Tensor | None] = []
            for tensor, dim in zip(tensors, dims, strict=True):
                if dim is None:
                    parts.append(None)
                    continue
                each = tensor.shape[dim] // current.examples
                rows = tensor.narrow(dim, run.start * each, run.groups * run.size * each)
                parts.append(rows.unflatten(dim, (run.groups, run.size * each)).movedim(dim, 0))
            parts += [copy[before : before + run.groups] for copy in copies or ()]
            found.append(tree_flatten(mapped(call, values, parts, run.groups, FEW_GROUPS)))
            before += run.groups
        outputs: list[Tensor | None] = []
        for place, leaves in enumerate(zip(*(leaves for leaves, _ in found), strict=True)):
            recurrent = isinstance(self.module, nn.RNNBase)
            dim = int(recurrent if place else not self.module.batch_first)
            if leaves[0] is None:
                outputs.append(None)
            else:
                outputs.append(torch.cat([leaf.movedim(0, dim).flatten(dim, dim + 1) for leaf in leaves], dim))
        return tree_unflatten(outputs, found[0][1])

    def _splits(self, current: Pass, args: Any, kwargs: Any) -> bool:
        """Whether it is known which rows belong to which example."""
        bound = self._signature.bind(*args, **kwargs).arguments
        first = next(iter(bound.values()))
        if not (isinstance(first, Tensor) and first.ndim == 3) or isinstance(first, Shared):
            return False
        return all(
            tensor.shape[dim] % current.examples == 0
            for name, value in bound.items()
            for tensor, dim in zip(tree_flatten(value)[0], self._dims(name, value), strict=True)
            if dim is not None
        )

    def _dims(self, name: str, value: Any) -> Iterable[int | None]:
        """Dimension of the examples in every leaf of an argument."""
        for leaf in tree_flatten(value)[0]:
            if not isinstance(leaf, Tensor) or (name == "attn_mask" and leaf.ndim == 2):
                yield None
            else:
                yield (
                    0 if name in ("attn_mask", "key_padding_mask") else int(name == "hx" or not self.module.batch_first)
                )


def transposed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments whose first is a batch of sequences, time first, with its examples first."""
    sequences = bool(args) and isinstance(args[0], Tensor) and args[0].ndim == 3
    return (args[0].transpose(0, 1), *args[1:]) if sequences else args


class _Inside(nn.Module):
    """The original ``forward`` of a module, whose parameters are visible below ``layer``."""

    def __init__(self, watching: ByGroup) -> None:
        super().__init__()
        self.layer = watching.module
        self._forward = watching.original

    def forward(self, **arguments: Any) -> Any:
        return self._forward(**arguments)
