"""Where the gradients of single examples can be told apart: tensors that hold the examples first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cbs.compute.auxiliary_pass import IN_AUXILIARY_PASS
from cbs.noise_scale.boundary import differentiable, tensors_of

MOST = 16
"""Calls inside a model that are looked at for a cut, from the last one back."""


def has_rows(tensor: Tensor, examples: int) -> bool:
    """Whether the first dimension of a tensor is a multiple of the examples."""
    return tensor.ndim > 0 and examples > 0 and tensor.shape[0] > 0 and tensor.shape[0] % examples == 0


def only(rows: Tensor, kept: Tensor) -> Tensor:
    """Rows of examples with zeros for all but some of these; ``kept`` has the shape ``[examples]``."""
    gone = ~kept.repeat_interleave(len(rows) // len(kept))
    return rows.masked_fill(gone.to(rows.device).view(-1, *[1] * (rows.ndim - 1)), 0)


def spacing() -> float:
    """That of the numbers beside 1 that autocast computes in now; 0 without it."""
    device = torch.accelerator.current_accelerator()
    kinds = {"cpu", "cpu" if device is None else device.type}
    types = [torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)]
    return max((torch.finfo(dtype).eps for dtype in types), default=0.0)


def asleep(kind: Any) -> Any:
    """What stands in a copy of a model for what watches the model; copies are not watched."""
    copy = kind.__new__(kind)
    copy.active = False
    return copy


class Call(NamedTuple):
    """A call of a module in a forward pass: its name, and the tensors of its output that have rows of examples."""

    name: str
    tensors: list[Tensor]


class Cut:
    """Tensors that lie between a loss computed inside a model and its parameters, at which the gradients of some
    examples can be kept and those of the others be set to zero.

    A loss that is computed outside needs none: the rows of the model's output do. Of the outermost calls of modules
    whose output has rows of examples, the cut is the last few that everything passes through: with all their gradients
    zero, those of the parameters are.

    Args:
        model: whose modules are looked at.
        examples: number of examples of the pass under way.

    Attributes:
        active: whether anything is noticed; it is not in a copy of the model.
        coarsest: largest spacing of the numbers beside 1 that calls compute in, under autocast.
        calls: of the latest pass.
        names: of the modules whose calls are the cut; empty while there is none.
    """

    def __init__(self, model: nn.Module, examples: Callable[[], int]) -> None:
        self.active, self.coarsest = True, 0.0
        self.calls: list[Call] = []
        self.names: set[str] = set()
        self._model = model
        self._examples = examples
        self._kept: Tensor | None = None
        self._recorded: list[Call] | None = None
        self._open: list[int] = []
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Start watching the calls of modules."""
        for name, module in self._model.named_modules():
            if name and not isinstance(module, torch.jit.RecursiveScriptModule):  # which takes no hooks
                self._handles += [
                    module.register_forward_pre_hook(self._enter),
                    module.register_forward_hook(partial(self._leave, name), always_call=True),
                ]

    def detach(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin(self) -> None:
        """Start a new forward pass."""
        self.calls, self._open = [], []

    def add(self, tensors: list[Tensor]) -> None:
        """Treat the output of the model itself as the only call."""
        self.calls = [Call("", tensors)]
        self._register(self.calls[0])

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Within the block, calls are those of a pass beside those of training, and given to the block."""
        self._recorded, self._open, calls = [], [], self.calls
        try:
            yield self._recorded
        finally:
            self._recorded, self._open, self.calls = None, [], calls

    @contextmanager
    def keeping(self, kept: Tensor) -> Iterator[None]:
        """Within the block, only some examples have gradients beyond the cut, ``[examples]``."""
        self._kept = kept
        try:
            yield
        finally:
            self._kept = None

    def find(self, vanishes: Callable[[], bool]) -> bool:
        """Find the cut of the latest pass; ``False`` if there is none.

        Args:
            vanishes: whether no parameter has a gradient when no example has one.
        """
        if self.names:
            return True
        names = list(dict.fromkeys(call.name for call in reversed(self.calls)))[:MOST]
        for number in range(1, len(names) + 1):
            self.names = {*names[:number]}
            if vanishes():
                return True
        self.names = set()
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> Cut:
        return asleep(Cut)

    def __reduce__(self) -> Any:
        return asleep, (Cut,)

    def _watching(self) -> bool:
        if not self.active:
            return False
        if self._recorded is not None:
            return True
        within_backward = torch._C._current_graph_task_id() != -1
        return torch.is_grad_enabled() and not (
            IN_AUXILIARY_PASS.get() or within_backward or torch.compiler.is_compiling()
        )

    def _enter(self, _module: nn.Module, _args: Any) -> None:
        if self._watching():
            self.coarsest = max(self.coarsest, spacing())
            self._open.append(len(self.calls if self._recorded is None else self._recorded))

    def _leave(self, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        if not self._watching() or not self._open:
            return
        first, recorded = self._open.pop(), self._recorded
        leaving = differentiable(output) if recorded is None else tensors_of(output)
        tensors = [leaf for leaf in leaving if has_rows(leaf, self._examples())]
        if tensors:  # what was called within is behind it
            (self.calls if recorded is None else recorded)[first:] = [Call(name, tensors)]
            if recorded is None:
                self._register(self.calls[-1])

    def _register(self, call: Call) -> None:
        for tensor in call.tensors:
            tensor.register_hook(partial(self._mask, call.name))

    def _mask(self, name: str, gradient: Tensor) -> Tensor | None:
        return only(gradient, self._kept) if self._kept is not None and name in self.names else None
