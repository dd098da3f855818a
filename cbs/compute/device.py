"""The device that a process computes on; the only module that knows how kinds of devices differ.

torch calls them accelerators: ``cuda`` (NVIDIA, and AMD under ROCm), ``xpu`` (Intel) and ``mps`` (Apple). A machine has
devices of one kind. A process whose visible devices are restricted, as by Ray, counts only those.
"""

import gc
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from cbs.errors import ConfigError

CPU = torch.device("cpu")
# Backends of process groups; other kinds of devices have none
_BACKENDS = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}

_capabilities = dict(getattr(torch.cpu, "get_capabilities", dict)())
FAST_BFLOAT16 = bool(
    _capabilities.get("amx_bf16") or (_capabilities.get("avx512_bf16") and "AMD" in str(_capabilities.get("cpu_name")))
)
"""Whether the CPU multiplies bfloat16 matrices faster than float32; ``False`` if torch is too old to report it."""


def kind() -> str:
    """Return the kind of this machine's accelerator; ``"cpu"`` where there is none."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def count() -> int:
    """Return the number of accelerators that this process sees."""
    return torch.accelerator.device_count() if kind() != "cpu" else 0


def pick(asked: str, precision: str, index: int = 0) -> torch.device:
    """Return the device that a configuration requests, and make it the current one of this process.

    Args:
        asked: one of :data:`cbs.trial.config.DEVICES`.
        precision: ``"float32"`` or ``"bfloat16"``.
        index: index among several devices.

    Raises:
        ConfigError: if this machine does not have the device, or it does not support the precision.
    """
    there = kind()
    if asked not in ("auto", "cpu", there):
        raise ConfigError(f"device {asked!r} was requested, but torch finds no such device; use --set device=auto")
    device = CPU
    if asked != "cpu" and there != "cpu":
        if index >= count():
            raise ConfigError(f"device {there}:{index} was requested, but this process sees only {count()} of them")
        torch.accelerator.set_device_index(index)
        device = torch.device(there, index)
    if precision == "bfloat16" and not has_bfloat16(device):
        raise ConfigError(
            f"precision bfloat16 needs a device that supports it, not {name(device)}; use precision=float32"
        )
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device supports autocast to bfloat16 in hardware; always ``False`` on a CPU, where autocast
    makes no step faster.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type != "cpu" and torch.amp.is_autocast_available(device.type)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context manager for forward passes at a precision of :class:`cbs.trial.config.TrialConfig`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def name(device: torch.device) -> str:
    """Return the manufacturer's name of a device; ``"cpu"`` for the CPU."""
    module = torch.get_device_module(device)
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type


def names() -> list[str]:
    """Return the names of all accelerators that this process sees."""
    return [name(torch.device(kind(), index)) for index in range(count())]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def release(device: torch.device) -> None:
    """Free memory that nothing refers to any more."""
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def backend(device: torch.device) -> str:
    """Return the backend of process groups for ranks on such a device.

    Raises:
        ConfigError: if torch has none.
    """
    if device.type not in _BACKENDS:
        raise ConfigError(f"torch has no process groups for {device.type}; use one worker per trial")
    return _BACKENDS[device.type]


def random_states() -> list[Tensor]:
    """Return the states of the global random generators of all accelerators that this process sees; empty without
    one.
    """
    if kind() == "cpu":
        return []
    module = torch.get_device_module(kind())
    if kind() == "mps":  # one device, and functions without its index
        return [module.get_rng_state()]
    return [module.get_rng_state(index) for index in range(count())]


def set_random_states(states: Sequence[Tensor]) -> None:
    """Restore the result of :func:`random_states`, for as many devices as there are."""
    if kind() == "mps":
        for state in states:
            torch.get_device_module("mps").set_rng_state(state)
        return
    for index, state in enumerate(states[: count()]):
        torch.get_device_module(kind()).set_rng_state(state, index)


def bfloat16_time() -> float:
    """Return the time of a bfloat16 matrix product over that of a float32 one, on one CPU core.

    The shortest of five alternating measurements counts for each, after one that warms up and is rarely the fastest.
    """
    least, threads = dict.fromkeys((torch.bfloat16, torch.float32), math.inf), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for dtype in list(least) * 6:
            matrix = torch.ones(256, 256, dtype=dtype)
            begun = time.perf_counter()
            torch.mm(matrix, matrix)
            least[dtype] = min(least[dtype], time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    return least[torch.bfloat16] / least[torch.float32]
