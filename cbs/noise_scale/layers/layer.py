"""A watched module, and the node in the autograd graph that sees the gradient of its output."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cbs.noise_scale.layers.contribution import Contribution
from cbs.noise_scale.layers.forward_pass import Pass, refuse_second_derivatives
from cbs.noise_scale.layers.recorder import Recorder
from cbs.noise_scale.layers.shared import Shared, Sharing


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
        types: module types of this kind, or their qualified names where a package need not be installed; subclasses of
            them that keep their ``forward`` included.
        names: attribute names of the parameters this kind knows.
        alone: whether modules without parameters to watch are watched, too.
    """

    types: ClassVar[tuple[type[nn.Module] | str, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()
    alone: ClassVar[bool] = False

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder) -> None:
        self.module: Any = module
        self.name = name
        self.watched = watched
        self.recorder = recorder
        self.original = module.forward
        self.sharing = Sharing(name, module, watched, recorder)
        self.parameters = self.sharing.parameters

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        """Attribute names of the parameters this kind knows of a module; none if it does not know the module."""
        return cls.names

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
        parameter: Tensor | None = getattr(self.module, attribute)
        return parameter if parameter is None or attribute not in self.watched else parameter.detach()

    def install(self, active: Callable[[], bool] = lambda: True) -> None:
        """Take the place of the module's ``forward``, for forward passes that begin while ``active()``."""
        self.active = active
        self._had_forward = "forward" in self.module.__dict__
        self.module.forward = self  # type: ignore[method-assign,assignment]

    def remove(self) -> None:
        """Undo :meth:`install`."""
        if self._had_forward:
            self.module.forward = self.original  # type: ignore[method-assign]
        else:
            del self.module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if torch.compiler.is_compiling():
            return _outside_compiler(self, *args, **kwargs)
        if recorder.separation.looking:
            recorder.separation.look(self.name, self.examples_first(args), kwargs)
        if not (self.active() and torch.is_grad_enabled()) or recorder.separation.broken:
            return self.original(*args, **kwargs)
        return self.watch(*args, **kwargs)

    def examples_first(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Positional arguments, the first dimension of the first of them that of the examples."""
        return args

    def watch(self, input: Tensor) -> Tensor:
        """A forward pass that will be differentiated."""
        if isinstance(input, Shared):
            return self.sharing.run(self.original, input)  # type: ignore[no-any-return]
        current = self.recorder.enter(self.name)
        if current is None or self.sharing.places() is None:
            return self.original(input)
        if input.ndim and input.shape[0] == 1 < current.examples:
            return self.sharing.run(self.original, input)  # type: ignore[no-any-return]
        current.count(self.watched.values())
        return self.call(input, current)

    def call(self, input: Tensor, current: Pass) -> Tensor:
        """The output, from which contributions will be found."""
        output, saved = self.run(input)
        return self.tapped(output, saved, current)

    def tapped(self, output: Tensor, saved: tuple[Tensor, ...], current: Pass) -> Tensor:
        """The output, whose gradient will be seen."""
        return _tap(output, saved, self, current, *self.parameters)  # type: ignore[no-any-return]

    def backward(self, current: Pass, saved: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Record the contributions of all groups.

        Args:
            current: the forward pass.
            saved: second result of :meth:`run`.
            gradient: gradient of the output, all examples.

        Returns:
            Gradient of the output, gradients of the parameters.
        """
        recorder = self.recorder
        rows = gradient.shape[0] if gradient.ndim else 0
        if rows != current.examples:
            time_first = gradient.ndim > 2 and gradient.shape[1] == current.examples
            if rows == 0 or rows % current.examples or time_first:
                self.refuse_rows(rows, current)
        if recorder.failure is not None:
            whole = self.contributions(1, saved, gradient)
            gradients = [
                whole[name].total().to(tensor.dtype) for name, tensor in zip(self.watched, self.parameters, strict=True)
            ]
            return gradient, None, None, None, *gradients
        sort = current.cells.sorted
        found = self.contributions(current.groups, tuple(map(sort, saved)), sort(gradient))
        gradients = [recorder.take(current, index, found[attribute]) for attribute, index in self.watched.items()]
        return gradient, None, None, None, *gradients

    def refuse_rows(self, rows: int, current: Pass) -> None:
        """Give up this step, because it is not known which rows are whose."""
        self.recorder.fail(
            f"cannot tell the examples in layer {self.name!r} apart: an output has {rows} rows for "
            f"{current.examples} examples; put examples first (batch_first=True), or use the source 'accumulation'"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module is not watched."""
        return copy.deepcopy(self.original, memo)

    def __reduce__(self) -> Any:
        return getattr, (self.module, "forward")


@torch.compiler.disable
def _outside_compiler(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    layer.recorder.fail(f"layer {layer.name!r} is called from compiled code; use the source 'accumulation'")
    return layer.original(*args, **kwargs)


class Tap(torch.autograd.Function):
    """Node of a layer, the identity of its output."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, value: Tensor, saved: tuple[Tensor, ...], layer: Layer, current: Pass, *parameters: Tensor
    ) -> Tensor:
        ctx.layer = layer
        ctx.current = current
        ctx.save_for_backward(*saved)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        layer = ctx.layer
        refuse_second_derivatives(f"layer {layer.name!r}")
        if torch.is_autocast_enabled(gradient.device.type):
            with torch.autocast(gradient.device.type, enabled=False):
                return layer.backward(ctx.current, ctx.saved_tensors, gradient)
        return layer.backward(ctx.current, ctx.saved_tensors, gradient)


_tap = super(torch.autograd.Function, Tap).apply
"""``Tap.apply`` without its Python part, which serves functorch and takes half the time; functorch refuses both."""
