"""Modules of any other type: run once more for every group, when the gradient of their output is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from cbs.errors import ConfigError, reason
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense
from cbs.noise_scale.layers.layer import Layer

if TYPE_CHECKING:
    from cbs.noise_scale.layers.groups import Run
    from cbs.noise_scale.layers.recorder import Pass

FEW_GROUPS = 8
"""Groups up to which one pass per group is faster than all of them under ``vmap``."""


@LAYERS.register("fallback")
class Fallback(Layer):
    """Watches a module without knowing what it computes.

    The module itself runs and is differentiated as usual; contributions come from a second run, under ``vmap`` or group
    by group where ``vmap`` cannot. They are compared with the gradient in every step, so that a module which mixes
    examples or draws random numbers is an error.
    """

    verified = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._vectorised = True

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        current = self.recorder.enter(self)
        output = self.original(*args, **kwargs)
        leaves, structure = tree_flatten(output)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not places:
            return output
        arguments, call = tree_flatten((args, kwargs))
        watched = Listener.apply(self, current, (arguments, call, places), *[leaves[place] for place in places])
        for place, leaf in zip(places, watched, strict=True):
            leaves[place] = leaf
        return tree_unflatten(leaves, structure)

    def listen(self, current: Pass, call: Call, gradients: list[Tensor | None]) -> None:
        """Record the contributions of all groups.

        Args:
            current: the forward pass.
            call: arguments of the call.
            gradients: of the outputs; ``None`` where one was not used.
        """
        splits = {tensor.shape[0] for tensor in gradients if tensor is not None and tensor.ndim}
        if not splits or any(rows % current.examples for rows in splits):
            raise ConfigError(
                f"cannot tell the examples in layer {self.name!r} apart: its output has {min(splits, default=0)} rows "
                f"for {current.examples} examples; examples come first in watched layers, or use the source "
                "'accumulation'"
            )
        first = next((leaf for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.ndim), None)
        if first is not None and first.shape[0] % current.examples == 0:
            splits.add(first.shape[0])
        splits.add(current.examples)
        found = [self._groups(current, run, call, gradients, splits) for run in current.runs]
        for place, index in enumerate(self.watched.values()):
            self.recorder.take(current, index, [Dense(values[place]) for values in found])

    def _groups(
        self, current: Pass, run: Run, call: Call, gradients: list[Tensor | None], splits: set[int]
    ) -> list[Tensor]:
        """Contributions of the groups of one run to every watched parameter, shape ``[groups, *parameter.shape]``."""

        def split(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] not in splits:
                return leaf
            rows = leaf.shape[0] // current.examples
            return leaf[run.start * rows : run.stop * rows].unflatten(0, (run.groups, run.size * rows))

        leaves = [split(leaf) for leaf in call.leaves]
        dims = [0 if new is not old else None for new, old in zip(leaves, call.leaves, strict=True)]
        seen = [place for place, gradient in zip(call.places, gradients, strict=True) if gradient is not None]
        pulled = [split(gradient) for gradient in gradients if gradient is not None]
        names = list(self.watched)
        module = _Original(self)
        buffers = {f"module.{name}": buffer for name, buffer in self.module.named_buffers()}
        parameters = [parameter.detach() for parameter in self.parameters]

        def run_module(values: list[Tensor], arguments: list[Any]) -> list[Tensor]:
            given = {f"module.{name}": value for name, value in zip(names, values, strict=True)}
            given |= {name: buffer.clone() for name, buffer in buffers.items()}
            args, kwargs = tree_unflatten(arguments, call.structure)
            outputs, _ = tree_flatten(functional_call(module, given, args, kwargs))
            return [outputs[place] for place in seen]

        def pull(arguments: list[Any], cotangents: list[Tensor]) -> list[Tensor]:
            _, pullback = vjp(lambda values: run_module(values, arguments), parameters)
            return pullback(cotangents)[0]

        def one_by_one() -> list[Tensor]:
            found = []
            for group in range(run.groups):
                arguments = [leaf[group] if dim == 0 else leaf for leaf, dim in zip(leaves, dims, strict=True)]
                with torch.enable_grad():
                    values = [parameter.clone().requires_grad_() for parameter in parameters]
                    outputs = run_module(values, arguments)
                    found.append(
                        torch.autograd.grad(
                            outputs, values, [gradient[group] for gradient in pulled], materialize_grads=True
                        )
                    )
            return [torch.stack(values) for values in zip(*found, strict=True)]

        self.recorder.paused = True
        devices = {parameter.device.index for parameter in parameters if parameter.device.type == "cuda"}
        try:
            with torch.random.fork_rng(devices=devices):
                return self._attempt(run.groups, lambda: vmap(pull, (dims, 0))(leaves, pulled), one_by_one)
        finally:
            self.recorder.paused = False

    def _attempt(
        self, groups: int, together: Callable[[], list[Tensor]], one_by_one: Callable[[], list[Tensor]]
    ) -> list[Tensor]:
        if self._vectorised and groups > FEW_GROUPS:
            try:
                return together()
            except (RuntimeError, ValueError, NotImplementedError):
                # vmap does not know every operation; what is wrong with the module itself shows below.
                self._vectorised = False
        try:
            return one_by_one()
        except (RuntimeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"cannot run layer {self.name!r} ({type(self.module).__name__}) on a group of examples: "
                f"{reason(error)}; use the source 'accumulation'"
            ) from error


class Call:
    """Arguments of a call.

    Attributes:
        leaves: flattened arguments.
        structure: how to unflatten them.
        places: of the outputs that are differentiated, among the flattened outputs.
    """

    def __init__(self, leaves: list[Any], structure: Any, places: list[int]) -> None:
        self.leaves = leaves
        self.structure = structure
        self.places = places


class _Original(nn.Module):
    """Calls the original ``forward`` of a module, whose parameters are visible below ``module``, without its hooks."""

    def __init__(self, layer: Fallback) -> None:
        super().__init__()
        self.module = layer.module
        self._call = [layer.original]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call[0](*args, **kwargs)


class Listener(torch.autograd.Function):
    """Identity of a module's outputs whose backward pass hands their gradients to the layer."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, layer: Fallback, current: Pass, call: tuple[list[Any], Any, list[int]], *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        leaves, structure, places = call
        ctx.layer, ctx.current, ctx.structure, ctx.places = layer, current, structure, places
        ctx.tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        ctx.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[leaves[place] for place in ctx.tensors])
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        layer = ctx.layer
        if torch.is_grad_enabled():
            raise layer.twice()
        leaves = list(ctx.leaves)
        for place, tensor in zip(ctx.tensors, ctx.saved_tensors, strict=True):
            leaves[place] = tensor.detach()
        if any(gradient is not None for gradient in gradients):
            layer.listen(ctx.current, Call(leaves, ctx.structure, ctx.places), list(gradients))
        return None, None, None, *gradients
