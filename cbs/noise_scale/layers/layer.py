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
        self._indices = tuple(watched.values())
        self._parameters = [(attribute, module._parameters[attribute]) for attribute in watched]

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
        for attribute, parameter in self._parameters:
            if own.get(attribute) is not parameter:
                return self.original(input)
        current = self.recorder.enter(self._indices, self.name)
        output, saved = self.run(input)
        return Tap.apply(output, self, current, saved, *[parameter for _, parameter in self._parameters])

    def backward(self, current: Pass, saved: tuple[Tensor, ...], gradient: Tensor) -> list[Tensor]:
        """Gradients of the watched parameters, after their contributions were recorded."""
        rows = gradient.shape[0] if gradient.ndim else 0
        per_example, rest = divmod(rows, current.examples)
        if rest or rows == 0:
            raise ConfigError(
                f"cannot tell the examples in layer {self.name!r} apart: its output has {rows} rows for "
                f"{current.examples} examples; examples come first in watched layers, or use the source 'accumulation'"
            )
        device = gradient.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._gradients(current, saved, gradient, per_example)
        return self._gradients(current, saved, gradient, per_example)

    def _gradients(self, current: Pass, saved: tuple[Tensor, ...], gradient: Tensor, rows: int) -> list[Tensor]:
        if len(current.runs) == 1:
            run = current.runs[0]
            found = [(run, self.contributions(run.groups, saved, gradient))]
        else:
            found = []
            for run in current.runs:
                part = slice(run.start * rows, run.stop * rows)
                here = tuple(tensor[part] for tensor in saved)
                found.append((run, self.contributions(run.groups, here, gradient[part])))
        gradients = []
        for attribute, parameter in self._parameters:
            parts = [(run, contributions[attribute]) for run, contributions in found]
            total = self.recorder.take(current, self.watched[attribute], parts)
            gradients.append(total.to(parameter.dtype))
        return gradients

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
        ctx.repeated = output.ndim > 0 and output.shape[0] == 1 < current.examples
        if ctx.repeated:
            output = output.expand(current.examples, *output.shape[1:])
            saved = tuple(tensor.expand(current.examples, *tensor.shape[1:]) for tensor in saved)
        ctx.save_for_backward(*saved)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise ConfigError(
                f"layer {ctx.layer.name!r} is differentiated twice (create_graph=True), which only the source "
                "'accumulation' can watch"
            )
        gradients = ctx.layer.backward(ctx.current, ctx.saved_tensors, gradient)
        passed = gradient.sum(0, keepdim=True) if ctx.repeated else gradient
        return (passed, None, None, None, *gradients)
