"""A watched module, and the node in the autograd graph that sees the gradient of its output."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers.contribution import Contribution

if TYPE_CHECKING:
    from cbs.noise_scale.layers.recorder import Pass, Recorder


class Layer:
    """Takes the place of a module's ``forward`` and of the part of its backward pass that makes parameter gradients.

    The output is computed with detached parameters, so that autograd differentiates with respect to the input alone;
    the gradient of a parameter tensor is the sum of the contributions of the groups.

    A subclass is a layer kind: it names module types and parameters, computes the output in :meth:`run` and the
    contributions in :meth:`contributions`.

    Args:
        module: what to watch.
        name: its name within the model.
        watched: index of the parameter tensor by attribute name, for those to watch.
        recorder: where contributions go.

    Attributes:
        types: module types of this kind; subclasses of them that keep their ``forward`` included.
        names: attribute names of the parameters this kind knows.
    """

    types: ClassVar[tuple[type[nn.Module], ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder) -> None:
        self.module = module
        self.name = name
        self.watched = watched
        self.recorder = recorder
        self.original = module.forward
        self.parameters = [module._parameters[attribute] for attribute in watched]

    @classmethod
    def refuse(cls, module: nn.Module) -> str | None:
        """Why a module of this kind cannot be watched; ``None`` if it can."""
        return None

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and what :meth:`contributions` needs: tensors whose rows go with those of the output."""
        raise NotImplementedError

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        """Contributions to every watched parameter, by attribute name.

        Args:
            groups: number of groups; their rows follow one another and are equally many.
            saved: second result of :meth:`run`, without gradients.
            gradient: gradient of the output, same number of rows.
        """
        raise NotImplementedError

    def value(self, attribute: str) -> Tensor | None:
        """A parameter for use in :meth:`run`."""
        parameter = self.module._parameters[attribute]
        return parameter.detach() if attribute in self.watched else parameter  # type: ignore[union-attr]

    def install(self) -> None:
        """Take the place of the module's ``forward``."""
        self._had_forward = "forward" in self.module.__dict__
        self.module.forward = self  # type: ignore[method-assign,assignment]

    def remove(self) -> None:
        """Undo :meth:`install`."""
        if self._had_forward:
            self.module.forward = self.original  # type: ignore[method-assign]
        else:
            del self.module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self.recorder.paused:
            return self.original(*args, **kwargs)
        if torch.compiler.is_compiling():
            return _outside_compiler(self, *args, **kwargs)
        return self.watch(*args, **kwargs)

    def watch(self, input: Tensor) -> Tensor:
        """A forward pass that will be differentiated."""
        own = self.module._parameters
        for attribute, parameter in zip(self.watched, self.parameters, strict=True):
            if own.get(attribute) is not parameter:
                return self.original(input)
        current = self.recorder.enter(self)
        output, saved = self.run(input)
        return Tap.apply(output, self, current, saved, *self.parameters)

    def backward(self, current: Pass, saved: tuple[Tensor, ...], gradient: Tensor) -> list[Tensor]:
        """Gradients of the watched parameters, after their contributions were recorded.

        Args:
            current: the forward pass.
            saved: second result of :meth:`run`, with a first dimension of 1 if it is the same for all examples.
            gradient: gradient of the output, all examples.
        """
        examples = current.examples
        rows = gradient.shape[0] if gradient.ndim else 0
        if rows == 0 or rows % examples:
            raise ConfigError(
                f"cannot tell the examples in layer {self.name!r} apart: its output has {rows} rows for {examples} "
                "examples; examples come first in watched layers, or use the source 'accumulation'"
            )
        repeated = rows > 1 and saved[0].shape[0] == 1
        found = []
        for run in current.runs:
            if len(current.runs) > 1:
                part = slice(run.start * rows // examples, run.stop * rows // examples)
                here = gradient[part]
                inputs = saved if repeated else tuple(tensor[part] for tensor in saved)
            else:
                here, inputs = gradient, saved
            if repeated:
                here = here.unflatten(0, (run.groups, -1)).sum(1)
                inputs = tuple(tensor.expand(run.groups, *tensor.shape[1:]) for tensor in saved)
            found.append(self.contributions(run.groups, inputs, here))
        take = self.recorder.take
        return [
            take(current, index, [contributions[attribute] for contributions in found])
            for attribute, index in self.watched.items()
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module is not watched."""
        return copy.deepcopy(self.original, memo)

    def __reduce__(self) -> Any:
        return getattr, (self.module, "forward")


@torch.compiler.disable
def _outside_compiler(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    return layer.watch(*args, **kwargs)


class Tap(torch.autograd.Function):
    """Identity whose backward pass hands the gradient to a layer and returns the gradients of its parameters."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, output: Tensor, layer: Layer, current: Pass, saved: tuple[Tensor, ...], *parameters: Tensor
    ) -> Tensor:
        ctx.layer = layer
        ctx.current = current
        ctx.save_for_backward(*saved)
        if output.shape[:1] == (1,) and current.examples > 1:
            return output.detach().expand(current.examples, *output.shape[1:])
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        layer, current = ctx.layer, ctx.current
        if torch.is_grad_enabled():
            raise ConfigError(
                f"layer {layer.name!r} is differentiated twice (create_graph=True), which only the source "
                "'accumulation' can watch"
            )
        saved = ctx.saved_tensors
        if torch.is_autocast_enabled(gradient.device.type):
            with torch.autocast(gradient.device.type, enabled=False):
                gradients = layer.backward(current, saved, gradient)
        else:
            gradients = layer.backward(current, saved, gradient)
        repeated = saved[0].shape[0] == 1 < gradient.shape[0]
        return (gradient.sum(0, keepdim=True) if repeated else gradient, None, None, None, *gradients)
