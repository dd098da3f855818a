"""Read the second moments by which adaptive optimizers divide gradients, from any implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.optimizers.matching import leaves

_ADAPTIVE = ("adam", "rmsprop", "adagrad", "lamb", "merit")
_SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
"""Names of the state that holds it: AMSGrad, the Adam family, RMSprop, Adagrad."""


def scaled_by_second_moments(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any], Tensor]]:
    """Yield the tensors whose gradients an optimizer divides by the root of a second moment.

    Each comes with the part of the optimizer that updates it and its parameter group.
    """
    for part in leaves(optimizer):
        names = [kind.__name__.lower() for kind in type(part).__mro__]
        known = any(fragment in name for fragment in _ADAPTIVE for name in names)
        for group in part.param_groups:
            for parameter in group["params"]:
                state = part.state.get(parameter, {})
                muon = group.get("use_muon", state.get("use_muon", False))
                if not muon and (known or any(name in state for name in _SECOND_MOMENTS)):
                    yield part, group, parameter


def root_of_second_moment(part: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor) -> Tensor | None:
    """Return the denominator of a tensor's gradient; ``None`` before its first step.

    This is the square root of the second moment, bias-corrected where the optimizer does so, plus epsilon. Complex
    numbers are treated as pairs of real ones, as optimizers do.

    Raises:
        ConfigError: if the optimizer keeps no second moment that is known.
    """
    # state is a defaultdict: [] would create an entry, which optimizers take as initialized.
    state = part.state.get(parameter, {})
    if not state:
        return None
    if "exp_inf" in state:
        return state["exp_inf"]
    name = next((name for name in _SECOND_MOMENTS if name in state), None)
    if name is None:
        raise ConfigError(
            f"geometry 'preconditioned' cannot read the second moment of {type(part).__name__}, which keeps "
            f"{', '.join(map(str, state))}; use 'l1'"
        )
    square = state[name]
    square = torch.view_as_real(square) if square.is_complex() else square
    if "grad_avg" in state:
        square = square - state["grad_avg"].square()
    return (square / _bias_correction(state, group)).sqrt().add_(group.get("eps", 0.0))


def _bias_correction(state: Mapping[str, Any], group: Mapping[str, Any]) -> Any:
    """Return ``1 - beta2^step`` where the optimizer counts steps and decays with a beta2, else 1."""
    step = state.get("step", group.get("step"))
    if step is None or "betas" not in group or not group.get("bias_correction", group.get("correct_bias", True)):
        return 1.0
    return 1.0 - group["betas"][1] ** step
