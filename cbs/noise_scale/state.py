"""Buffers and random numbers as they were before a pass beside those of training."""

from __future__ import annotations

import random

import torch
from torch import nn


class State:
    """What a forward pass changes besides gradients.

    Args:
        module: whose buffers; :meth:`restore` puts them back.
        random: whether random states are put back, too: Python's, torch's and those of the module's devices.
    """

    def __init__(self, module: nn.Module, *, random: bool = False) -> None:
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._random = _random_states(module) if random else None

    def changed(self) -> bool:
        """Whether a buffer has other values now."""
        return not all(torch.equal(buffer, value) for buffer, value in self._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for buffer, value in self._buffers:
            buffer.copy_(value)
        if self._random is not None:
            of_python, of_torch, of_devices = self._random
            random.setstate(of_python)
            torch.set_rng_state(of_torch)
            for device, state in of_devices.items():
                torch.get_device_module(device).set_rng_state(state, device)


def _random_states(module: nn.Module) -> tuple[tuple[object, ...], torch.Tensor, dict[torch.device, torch.Tensor]]:
    devices = {parameter.device for parameter in module.parameters()} - {torch.device("cpu")}
    on_devices = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
    return random.getstate(), torch.get_rng_state(), on_devices
