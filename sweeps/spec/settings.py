"""Process-wide settings on which the numbers of a trial depend, and which foreign code may change for later trials."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def settings() -> dict[str, Any]:
    """Return the settings of torch and numpy on which results depend, by the function that sets them."""
    kernels: Any = torch.backends.cudnn
    products: Any = (torch.backends.cuda, torch.backends.mkldnn)
    return {
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.set_default_device": torch.get_default_device(),
        "torch.set_grad_enabled": torch.is_grad_enabled(),
        "torch.set_num_threads": torch.get_num_threads(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.set_float32_matmul_precision": [backend.matmul.fp32_precision for backend in products],
        "torch.backends.cudnn": (kernels.enabled, kernels.benchmark, kernels.deterministic, kernels.allow_tf32),
        "numpy.seterr": np.geterr(),
    }


def changed(before: dict[str, Any]) -> list[str]:
    """Return the functions whose settings have changed since ``before``."""
    return [name for name, value in settings().items() if value != before[name]]
