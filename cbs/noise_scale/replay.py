"""Repeat the call of a module with other examples."""

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cbs.compute.state import State, auxiliary_pass
from cbs.errors import ConfigError
from cbs.noise_scale.grouping import pick

DRAWING = ("rand", "bernoulli", "uniform", "normal", "exponential", "multinomial", "native_dropout")
"""Beginnings of the names of torch's operations that draw random numbers."""


class Replay:
    """Everything that the output of a call depends on, as it was before the call, so that it can be repeated.

    A repeated call leaves the module and the random generators as they were.

    Attributes:
        draws: shape of random numbers that a repetition with all examples drew for all of them together; empty if none.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = module.module if isinstance(module, DistributedDataParallel) else module
        self._arguments = tree_map(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )
        leaves = tree_leaves(self._arguments)
        self._rows = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim), 0)
        self._state, self.draws = State(module, random=True), ""
        self._norms = [(parameter, _norm(parameter)) for parameter in module.parameters()]

    def changed(self, *, trained: bool) -> bool:
        """Return whether parameters, such as moving averages, changed since the call; a repetition changes them again.

        Parameters that are trained are looked at only if ``trained``.
        """
        return any(
            norm != _norm(parameter) for parameter, norm in self._norms if trained or not parameter.requires_grad
        )

    def inputs(self, examples: int) -> list[Tensor]:
        """Return the argument tensors that have the same number of rows, one or more, for every example."""
        leaves = [leaf for leaf in tree_leaves(self._arguments) if isinstance(leaf, Tensor) and leaf.ndim]
        return [leaf for leaf in leaves if leaf.shape[0] == self._rows and self._rows % examples == 0]

    def run(self, kept: Tensor, others: Tensor) -> Any:
        """Return the output with all examples except the kept ones replaced by others.

        Computed without autocast, because its rounding would hide small changes.

        Args:
            kept: mask of the examples that stay, shape ``[examples]``.
            others: index of the example that replaces each of the others, shape ``[examples]``.

        Raises:
            ConfigError: if the first tensor among the arguments does not have the examples in its first dimension.
        """
        if self._rows == 0 or self._rows % len(kept):
            raise ConfigError("the first tensor in the model's arguments does not have examples first")
        stay = kept.repeat_interleave(self._rows // len(kept))

        def replaced(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] != len(stay):
                return leaf.clone() if isinstance(leaf, Tensor) else leaf
            mask = stay.to(leaf.device).view(-1, *[1] * (leaf.ndim - 1))
            return torch.where(mask, leaf, pick(leaf, others, len(others)))

        args, kwargs = tree_map(replaced, self._arguments)
        now = State(self._module, random=True)
        device = next((tensor.device.type for tensor in self._module.parameters()), "cpu")
        try:
            self._state.restore()
            with (
                auxiliary_pass(),
                torch.autocast(device, enabled=False),
                torch.no_grad(),
                _Draws(len(kept), self._module) if bool(kept.all()) else nullcontext() as seen,
            ):
                before = _words() if seen else []
                output = self._module(*args, **kwargs)  # with hooks of others; ours rest in an auxiliary pass
            if seen:  # the others draw the same
                drawn = [at - start for (key, start), (same, at) in zip(before, _words(), strict=True) if key == same]
                self.draws = seen.shape or "[]" * any(0 < number < len(kept) for number in drawn)
            return output
        finally:
            now.restore()


class _Draws(TorchDispatchMode):
    """Notices random numbers that are fewer than the examples, one row that is no multiple of them, or those of a
    matrix of weights."""

    def __init__(self, examples: int, module: nn.Module) -> None:
        super().__init__()
        self._examples, self.shape = examples, ""
        self._weights = {weights.shape for weights in module.parameters() if weights.ndim > 1}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler for this, a second of every process that measures

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        draws = func._schema.name.removeprefix("aten::").startswith(DRAWING)
        drawn: Any = tree_leaves(output)[0] if draws else None
        rowless = draws and (drawn.ndim == 1 or drawn.shape in self._weights)
        if draws and (drawn.numel() < self._examples or (rowless and drawn.shape[0] % self._examples)):
            self.shape = str(list(drawn.shape))
        return output


def _words() -> list[tuple[Any, int]]:
    """Return how many random words of the current table Python's and numpy's generators have used, each after its
    table; a number takes one word or two."""
    *python, used = random.getstate()[1]
    numpy: Any = np.random.get_state(legacy=False)["state"]
    return [(python, used), (numpy["key"].tobytes(), int(numpy["pos"]))]


def _norm(parameter: Tensor) -> float:
    """Return the norm; 0 for the integers and bytes of quantized parameters, which nothing updates in place."""
    values = parameter.detach()
    if values.itemsize == 1 or not (values.is_floating_point() or values.is_complex()):
        return 0.0
    return float(torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32)))
