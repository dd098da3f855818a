"""Steps on the sphere given by a matrix's initial norm (Wen et al. 2025, Hyperball Optimization,
whenwen.github.io/wd_blog).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cbs.optimizers.contract import misfit
from cbs.optimizers.layout import as_matrices, as_parameter


def step_on_sphere(owner: torch.optim.Optimizer, param: Tensor, direction: Tensor, group: Mapping[str, Any]) -> None:
    """Move a matrix W to ``R N(W - lr * R * N(D))`` with ``N(X) = X / |X|`` and the Frobenius norm.

    R = |W| before the first step is kept in the optimizer's state.

    Args:
        owner: optimizer of the parameter.
        param: the parameter.
        direction: D, as matrices ``[m, n]`` or ``[experts, m, n]``; where it is 0, W stays.
        group: options of the parameter, ``lr`` and ``layout``.

    Raises:
        ValueError: if a matrix is 0 at its first step.
    """
    matrix = as_matrices(param, group["layout"]).to(direction.dtype)
    state = owner.state[param]
    if "radius" not in state:
        state["radius"] = _norm(matrix)
        if not bool((state["radius"] > 0).all()):
            raise ValueError(
                f"{type(owner).__name__} keeps the norm of a matrix, but one of shape {tuple(param.shape)} starts "
                'at 0; initialize it otherwise, or train it with AdamW: matrices=["!NAME"]'
            )
    radius: Tensor = state["radius"]
    if radius.shape != (*matrix.shape[:-2], 1, 1):
        raise misfit(owner, "radius", radius, param)
    length = _norm(direction)
    moved = matrix - float(group["lr"]) * radius * torch.where(length > 0, direction / length, direction)
    param.copy_(as_parameter(moved * (radius / _norm(moved)), param.shape, group["layout"]))


def _norm(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
