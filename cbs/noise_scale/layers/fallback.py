"""Modules of any other type: run once more for every group, when the gradient of their output is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from cbs.errors import ConfigError, reason
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Dense
from cbs.noise_scale.layers.forward_pass import Pass, refuse_second_derivatives
from cbs.noise_scale.layers.groups import Run
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.recorder import Recorder

FEW_GROUPS = 8
"""Groups up to which one pass per group is faster than all of them under ``vmap``."""


@LAYERS.register("fallback")
class Fallback(Layer):
    """Watches a module without knowing what it computes.

    The module itself runs and is differentiated as usual; contributions come from a second run, under ``vmap`` or group
    by group where ``vmap`` cannot. They are compared with the gradient in every step, so that a module which mixes
    examples or draws random numbers is an error.
    """

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder) -> None:
        super().__init__(module, name, watched, recorder)
        recorder.completeness.compared.update(watched.values())
        self._vectorised = True

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        own = [self.module.get_parameter(name) for name in self.watched]
        if any(here is not mine for here, mine in zip(own, self.parameters, strict=True)):
            return self.original(*args, **kwargs)
        current = self.recorder.enter(self.name)
        if current is None:
            return self.original(*args, **kwargs)
        current.count(self.watched.values())
        outputs, structure = tree_flatten(self.original(*args, **kwargs))
        places = [place for place, leaf in enumerate(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if places:
            call = Call(args, kwargs, places, self.parameters[0].device.type)
            watched = Listener.apply(self, current, call, *[outputs[place] for place in places])
            for place, leaf in zip(places, watched, strict=True):
                outputs[place] = leaf
        return tree_unflatten(outputs, structure)

    def listen(self, current: Pass, call: Call, leaves: list[Any], gradients: list[Tensor | None]) -> None:
        """Record the contributions of all groups.

        Args:
            current: the forward pass.
            call: of the module.
            leaves: its flattened arguments.
            gradients: of the outputs; ``None`` where one was not used.
        """
        examples = current.examples
        splits = {examples} | {tensor.shape[0] if tensor.ndim else 0 for tensor in gradients if tensor is not None}
        wrong = [rows for rows in splits if rows == 0 or rows % examples]
        if wrong:
            raise self.mixed_up(wrong[0], examples)
        first = next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim), None)
        if first is not None and first.shape[0] % examples == 0:
            splits.add(first.shape[0])
        sizes = [torch.linalg.vector_norm(gradient).item() for gradient in gradients if gradient is not None]
        completeness = self.recorder.completeness
        completeness.largest = max(completeness.largest, *sizes)
        self.recorder.paused = True
        devices = {parameter.device.index for parameter in self.parameters if parameter.device.type == "cuda"}
        try:
            with torch.random.fork_rng(devices=devices), call.autocast():
                found = [self._groups(current, run, call, leaves, gradients, splits) for run in current.runs]
        finally:
            self.recorder.paused = False
        for place, index in enumerate(self.watched.values()):
            self.recorder.take(current, index, [Dense(values[place]) for values in found])

    def _groups(
        self,
        current: Pass,
        run: Run,
        call: Call,
        leaves: list[Any],
        gradients: list[Tensor | None],
        splits: set[int],
    ) -> list[Tensor]:
        """Contributions of the groups of one run to every watched parameter, shape ``[groups, *parameter.shape]``."""

        def split(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] not in splits:
                return leaf
            rows = leaf.shape[0] // current.examples
            return leaf[run.start * rows : run.stop * rows].unflatten(0, (run.groups, run.size * rows))

        arguments = [split(leaf) for leaf in leaves]
        dims = [None if new is old else 0 for new, old in zip(arguments, leaves, strict=True)]
        seen = [place for place, gradient in zip(call.places, gradients, strict=True) if gradient is not None]
        pulled = [
            split(gradient).sum(1, keepdim=True) if repeated else split(gradient)
            for gradient, repeated in zip(gradients, call.repeated, strict=True)
            if gradient is not None
        ]
        module = _Original(self)
        buffers = {f"module.{name}": buffer for name, buffer in self.module.named_buffers()}
        names = [f"module.{name}" for name in self.watched]
        parameters = [parameter.detach() for parameter in self.parameters]

        def run_module(values: list[Tensor], leaves: list[Any]) -> list[Tensor]:
            state = {name: buffer.clone() for name, buffer in buffers.items()} | dict(zip(names, values, strict=True))
            args, kwargs = tree_unflatten(leaves, call.structure)
            outputs, _ = tree_flatten(functional_call(module, state, args, kwargs, tie_weights=False))
            return [outputs[place] for place in seen]

        def pull(leaves: list[Any], cotangents: list[Tensor]) -> list[Tensor]:
            return vjp(lambda values: run_module(values, leaves), parameters)[1](cotangents)[0]

        def together() -> list[Tensor]:
            return vmap(pull, (dims, 0))(arguments, pulled)

        def one_by_one() -> list[Tensor]:
            found = []
            for group in range(run.groups):
                leaves = [leaf if dim is None else leaf[group] for leaf, dim in zip(arguments, dims, strict=True)]
                with torch.enable_grad():
                    values = [parameter.clone().requires_grad_() for parameter in parameters]
                    outputs = run_module(values, leaves)
                cotangents = [gradient[group] for gradient in pulled]
                found.append(torch.autograd.grad(outputs, values, cotangents, materialize_grads=True))
            return [torch.stack(values) for values in zip(*found, strict=True)]

        return self._attempt(run.groups, together, one_by_one)

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
    """One call of a module, without the tensors among its arguments.

    Attributes:
        tensors: the tensors; autograd saves them.
        places: which of the flattened outputs are differentiated.
        repeated: whether they are the same for all examples.
        structure: how to unflatten the arguments.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], places: list[int], device: str) -> None:
        leaves, self.structure = tree_flatten((args, kwargs))
        self.tensors: tuple[Tensor, ...] = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        self.places = places
        self.repeated = [False] * len(places)
        self._leaves = [_Hole if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))

    def leaves(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The flattened arguments."""
        rest = iter(tensors)
        return [next(rest).detach() if leaf is _Hole else leaf for leaf in self._leaves]

    def autocast(self) -> torch.autocast:
        """The state of autocast at the call."""
        device, dtype, enabled = self._autocast
        return torch.autocast(device, dtype, enabled)


class _Hole:
    """Stands for a tensor."""


class _Original(nn.Module):
    """Calls the original ``forward`` of a module, whose parameters are visible below ``module``, without its hooks."""

    def __init__(self, layer: Fallback) -> None:
        super().__init__()
        self.module = layer.module
        self._layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._layer.original(*args, **kwargs)


class Listener(torch.autograd.Function):
    """Identity of a module's outputs whose backward pass hands their gradients to the layer."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, layer: Fallback, current: Pass, call: Call, *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.layer, ctx.current, ctx.call = layer, current, call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*call.tensors)
        call.tensors = ()
        call.repeated = [output.shape[:1] == (1,) and current.examples > 1 for output in outputs]
        return tuple(
            output.detach().expand(current.examples, *output.shape[1:]) if repeated else output.detach()
            for output, repeated in zip(outputs, call.repeated, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        layer, call = ctx.layer, ctx.call
        refuse_second_derivatives(f"layer {layer.name!r}")
        if layer.recorder.failure is None and any(gradient is not None for gradient in gradients):
            try:
                layer.listen(ctx.current, call, call.leaves(ctx.saved_tensors), list(gradients))
            except ConfigError as error:
                layer.recorder.fail(error)
        passed = [
            gradient.sum(0, keepdim=True) if repeated and gradient is not None else gradient
            for gradient, repeated in zip(gradients, call.repeated, strict=True)
        ]
        return None, None, None, *passed
