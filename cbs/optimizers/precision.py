"""The precision in which optimizers keep their state: float32 beside weights of half precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def state_dtype(tensor: Tensor) -> torch.dtype:
    """float32 for half precision, else the tensor's own type."""
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def keep_precision(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Undo the rounding of a state that ``optimizer`` has just loaded from ``state_dict``.

    torch casts floating point state to the type of its parameter, which would round the float32 averages that some
    optimizers keep for bfloat16 weights.
    """
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for key, param in zip(keys, params, strict=True):
        for name, saved in state_dict["state"].get(key, {}).items():
            loaded = optimizer.state[param][name]
            if isinstance(saved, torch.Tensor) and saved.dtype != loaded.dtype:
                optimizer.state[param][name] = saved.to(loaded.device, copy=True)
