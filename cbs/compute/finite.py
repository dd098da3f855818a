"""Find values of a trial that are infinite or NaN; a step that fails because of them means divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def loss_not_finite(losses: np.ndarray, first: int) -> str | None:
    """Return a message with the step of the first loss that is not finite; ``None`` where all are finite.

    Args:
        losses: losses of successive steps.
        first: number of the first of these steps.
    """
    finite = np.isfinite(losses)
    return None if finite.all() else f"training loss is not finite at step {first + int(finite.argmin())}"


def tensor_not_finite(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> str | None:
    """Return a message about the first tensor that is not finite; ``None`` where all are finite.

    Checked are the weights, and if an optimizer is given also gradients and the optimizer's state.
    """
    params = list(model.named_parameters())
    asked: list[tuple[str, Any]] = [(f"weight {name}", param.data) for name, param in params]
    if optimizer is not None:
        asked += [(f"gradient of {name}", param.grad) for name, param in params]
        asked += [(f"optimizer state of {name}", optimizer.state.get(param)) for name, param in params]
    for what, value in asked:
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        if not all(bool((leaf._values() if leaf.is_sparse else leaf).isfinite().all()) for leaf in tensors):
            return f"{what} is not finite"
    return None
