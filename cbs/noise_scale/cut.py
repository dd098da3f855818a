"""Find tensors inside a model at which the gradients of single examples can be told apart."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from cbs.compute.state import IN_AUXILIARY_PASS
from cbs.noise_scale.boundary import differentiable, tensors_of

# Largest number of calls inside a model that are considered for a cut, from the last one back
MOST = 16


def has_rows(tensor: Tensor, examples: int) -> bool:
    """Return whether the first dimension of a tensor is a positive multiple of the number of examples."""
    return tensor.ndim > 0 and examples > 0 and tensor.shape[0] > 0 and tensor.shape[0] % examples == 0


def only(rows: Tensor, kept: Tensor) -> Tensor:
    """Zero the rows of all examples except those marked in ``kept``, a mask of shape ``[examples]``."""
    gone = ~kept.repeat_interleave(len(rows) // len(kept))
    return rows.masked_fill(gone.to(rows.device).view(-1, *[1] * (rows.ndim - 1)), 0)


def spacing() -> float:
    """Return the machine epsilon of the coarsest dtype that autocast currently computes in; 0 without autocast."""
    device = torch.accelerator.current_accelerator()
    kinds = {"cpu", "cpu" if device is None else device.type}
    types = [torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)]
    return max((torch.finfo(dtype).eps for dtype in types), default=0.0)


def in_training() -> bool:
    """Return whether the current forward pass belongs to training and is no recomputation during a backward pass."""
    beside = IN_AUXILIARY_PASS.get() or torch._C._current_graph_task_id() != -1
    return torch.is_grad_enabled() and not (beside or torch.compiler.is_compiling())


def asleep(kind: Any) -> Any:
    """Return an inactive placeholder for a hook in a copy of the model, because copies are not measured."""
    copy = kind.__new__(kind)
    copy.active = False
    return copy


class Call(NamedTuple):
    """One call of a module in a forward pass.

    Attributes:
        name: name of the module.
        tensors: output tensors that have rows of examples; they may change in place later.
        edges: autograd's edges of these tensors as they were, in a pass of training.
    """

    name: str
    tensors: list[Tensor]
    edges: Sequence[GradientEdge] = ()


class Cut:
    """Tensors that separate a loss computed inside a model from its parameters.

    At these tensors the gradients of some examples can be kept and those of the others set to zero. A loss that is
    computed outside the model needs no cut: the model's output serves. The candidates are the outermost calls of
    modules whose output has rows of examples; the cut is the shortest run of latest calls through which all gradients
    pass, that is for which zero gradients at the calls mean zero gradients at the parameters.

    Args:
        model: model whose modules are watched.
        examples: returns the number of examples in the current forward pass.

    Attributes:
        active: whether calls are recorded; ``False`` in a copy of the model.
        coarsest: largest machine epsilon that calls compute in, under autocast.
        calls: calls of the latest forward pass.
        names: names of the modules whose calls are the cut; empty while no cut is known.
    """

    def __init__(self, model: nn.Module, examples: Callable[[], int]) -> None:
        self.active, self.coarsest = True, 0.0
        self.calls: list[Call] = []
        self.names: set[str] = set()
        self._model = model
        self._examples = examples
        self._kept: Tensor | None = None
        self._repeated = False
        self._open: list[int] = []
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Start watching calls of the model's modules."""
        for name, module in self._model.named_modules():
            if name and not isinstance(module, torch.jit.RecursiveScriptModule):  # it accepts no hooks
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
        self.coarsest = max(self.coarsest, spacing())
        self.calls, self._open = [], []

    def add(self, tensors: list[Tensor]) -> None:
        """Treat the output of the model itself as the only call."""
        self.calls = [self._registered("", tensors)]

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Record the calls of an auxiliary forward pass inside the block, and yield them instead of keeping them."""
        before, self._repeated = self.calls, True
        self.begin()
        try:
            yield self.calls
        finally:
            self.calls, self._repeated = before, False

    @contextmanager
    def keeping(self, kept: Tensor) -> Iterator[None]:
        """Let gradients pass the cut inside the block only for the examples in the mask ``kept``, ``[examples]``."""
        self._kept = kept
        try:
            yield
        finally:
            self._kept = None

    def find(self, vanishes: Callable[[], bool]) -> bool:
        """Find the cut of the latest forward pass; return ``False`` if there is none.

        Args:
            vanishes: computes whether all parameter gradients are zero when those of all examples are.
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

    def edges(self, calls: Sequence[Call]) -> list[GradientEdge]:
        """Return the edges at the cut of a forward pass; while none is known, those of its last call."""
        return [edge for call in calls if call.name in self.names or call is calls[-1] for edge in call.edges]

    def __reduce__(self) -> Any:
        return asleep, (Cut,)

    def _watching(self) -> bool:
        return self.active and (self._repeated or in_training())

    def _enter(self, _module: nn.Module, _args: Any) -> None:
        if self._watching():
            self.coarsest = max(self.coarsest, spacing())
            self._open.append(len(self.calls))

    def _leave(self, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        if not self._watching() or not self._open:
            return
        first, leaving = self._open.pop(), tensors_of(output) if self._repeated else differentiable(output)
        tensors = [leaf for leaf in leaving if has_rows(leaf, self._examples())]
        if tensors:  # this call replaces the calls that were made inside it
            self.calls[first:] = [Call(name, tensors) if self._repeated else self._registered(name, tensors)]

    def _registered(self, name: str, tensors: list[Tensor]) -> Call:
        for tensor in tensors:
            tensor.register_hook(partial(self._mask, name))
        return Call(name, tensors, [get_gradient_edge(tensor) for tensor in tensors])

    def _mask(self, name: str, gradient: Tensor) -> Tensor | None:
        return only(gradient, self._kept) if self._kept is not None and name in self.names else None
