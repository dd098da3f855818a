"""Passes beside those of training that examine the model, and leave no trace.

Hooks that count passes ignore them, and buffers, random states and modes are as before afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

IN_AUXILIARY_PASS: ContextVar[bool] = ContextVar("IN_AUXILIARY_PASS", default=False)
"""Whether the current forward pass is auxiliary."""


_OF_MODULES = {*vars(nn.Module())}  # Attributes that all modules have, such as hooks


@contextmanager
def auxiliary_pass() -> Iterator[None]:
    """Mark forward passes inside the block as auxiliary."""
    token = IN_AUXILIARY_PASS.set(True)
    try:
        yield
    finally:
        IN_AUXILIARY_PASS.reset(token)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block with a model in evaluation mode; every module returns to its earlier mode afterwards."""
    frozen = [module for module in model.modules() if not module.training]
    model.eval()
    try:
        yield
    finally:
        model.train()  # which also reaches parts that were in evaluation mode before
        for module in frozen:
            module.training = False


class State:
    """Everything that a forward pass changes besides gradients.

    These are buffers, and attributes of modules that are numbers, tensors without a gradient, lists, dictionaries or
    sets, or that are replaced.

    Args:
        module: module whose state is saved; :meth:`restore` also puts back buffers that were replaced.
        random: whether random states are saved, too: those of Python, numpy, torch and the module's devices.
    """

    def __init__(self, module: nn.Module, *, random: bool = False) -> None:
        self._buffers = [
            (owner._buffers, f"{name}.{key}" if name else key, key, buffer, buffer.detach().clone())
            for name, owner in module.named_modules()
            for key, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._attributes = [
            (vars(owner), key, value, _copied(value))
            for owner in module.modules()
            for key, value in vars(owner).items()
            if key not in _OF_MODULES
        ]
        self._random = _random_states(module) if random else None

    def other_buffer(self, other: State, rounding: float) -> str:
        """Return the name of the first buffer whose values differ in ``other``, a later state of the same module; empty
        if none.

        Args:
            other: state to compare with.
            rounding: relative difference that counts as equal.
        """
        values = {name: value for _, name, _, _, value in other._buffers}
        return next(
            (name for _, name, _, _, value in self._buffers if not _close(value, values.get(name), rounding)), ""
        )

    def drew(self, other: State) -> bool:
        """Return whether random numbers were drawn between this state and ``other``."""
        return not _equal(self._random, other._random)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything that was saved."""
        for holder, _, key, buffer, value in self._buffers:
            # the tensor itself, which others may hold, with the values that it had
            holder[key] = buffer
            buffer.copy_(value)
        for holder, key, value, kept in self._attributes:
            holder[key] = value
            if kept is None or value is kept:
                continue
            if isinstance(value, Tensor):
                value.copy_(kept)
            elif isinstance(value, list):
                value[:] = kept
            else:
                value.clear()
                value.update(kept)
        if self._random is not None:
            random.setstate(self._random["python"])
            np.random.set_state(self._random["numpy"])
            torch.set_rng_state(self._random["torch"])
            for device, state in self._random["devices"].items():
                torch.get_device_module(device).set_rng_state(state, device)


def _copied(value: Any) -> Any:
    """Return a copy of a value that can change in place; ``None`` for types that are not compared."""
    if isinstance(value, Tensor):
        plain = value.layout is torch.strided and not value.requires_grad and not isinstance(value, nn.Parameter)
        return value.detach().clone() if plain else None
    return type(value)(value) if type(value) in (list, dict, set) else None


def _random_states(module: nn.Module) -> dict[str, Any]:
    devices = {parameter.device for parameter in module.parameters()} - {torch.device("cpu")}
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "devices": {device: torch.get_device_module(device).get_rng_state(device) for device in devices},
    }


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def _close(one: Tensor, other: Tensor | None, rounding: float) -> bool:
    if other is None or one.shape != other.shape:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return not float((one - other).norm()) > rounding * float(one.norm())
