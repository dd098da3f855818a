"""What optimizers share that turn momentum into a direction by its singular vectors.

For a parameter with gradient g they keep the average ``b <- momentum * b + (1 - momentum) g`` and hand on b, or with
Nesterov's look-ahead ``momentum * b + (1 - momentum) g`` of the new b. The methods differ in what they make of it: Muon
its polar factor, MUON+ that factor with rows and columns of one length, OrScale a multiple of it, Scion a step within a
norm ball. Polar factors do not depend on scale, so an average serves where papers write a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.adamw import has_fused_kernel
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.precision import keep_precision, state_dtype
from cbs.optimizers.routing import Matrices, route
from cbs.optimizers.spectral.orthogonalization import check_orthogonalization, orthogonalize


class MomentumOptimizer(torch.optim.Optimizer):
    """Averages gradients and leaves the step to a subclass.

    The average is kept in float32 for parameters of a lower precision and in the parameter's own type otherwise.
    Parameters without a gradient are skipped.

    Args:
        params: parameters, or groups of them as torch.optim takes them; every option can be set for a group.
        lr: learning rate, at least 0.
        options: all other options, with their values; among them ``momentum`` in [0, 1) and ``nesterov``.

    Raises:
        ValueError: if a value is outside its domain.
    """

    def __init__(self, params: ParamsT, lr: float, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse options outside their domain with a ``ValueError``; a subclass checks its own besides."""
        for name in ("lr", "weight_decay"):
            if not 0.0 <= group.get(name, 0.0) < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {group[name]}")
        if not 0.0 <= group["momentum"] < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {group['momentum']}")

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` in place.

        Args:
            params: parameters of one group that have a gradient.
            momenta: the averages, same shapes; must be left alone.
            group: the group's options.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient once; returns what ``closure`` returns.

        Raises:
            RuntimeError: if a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None and param.numel() > 0]
            if params:
                self.update(params, self._momenta(params, group), group)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; see :meth:`torch.optim.Optimizer.add_param_group`."""
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a copy of ``state_dict``; the averages keep their precision."""
        super().load_state_dict(state_dict)
        keep_precision(self, state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A state dict of torch.optim.Muon, or of fewer options than there are now, leaves the others as constructed.
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def _momenta(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        gradients, averages = [], []
        for param in params:
            assert param.grad is not None
            if param.grad.is_sparse:
                raise RuntimeError(
                    f"{type(self).__name__} needs dense gradients; build the embedding with sparse=False"
                )
            state = self.state[param]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(param, dtype=state_dtype(param))
            averages.append(state["momentum_buffer"])
            gradients.append(param.grad.to(state_dtype(param)))
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        return list(torch._foreach_lerp(gradients, averages, group["momentum"])) if group["nesterov"] else averages


class SpectralOptimizer(MomentumOptimizer):
    """Averages the gradients of matrices and orthogonalises the averages.

    See :mod:`cbs.optimizers.spectral.orthogonalization`.

    Args:
        params: two-dimensional parameters, or groups of them.
        lr: learning rate, at least 0.
        options: all other options; besides those of :class:`MomentumOptimizer` also ``orthogonalization``,
            ``ns_steps``, ``ns_coefficients`` and ``ns_dtype``.

    Raises:
        ValueError: if a value is outside its domain, or a parameter does not have two dimensions.
    """

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse options outside their domain with a ``ValueError``."""
        super().check(group)
        check_orthogonalization(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add matrices with options of their own; see :meth:`torch.optim.Optimizer.add_param_group`."""
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.ndim != 2:
                raise ValueError(f"{type(self).__name__} takes matrices, got a parameter of shape {tuple(param.shape)}")

    def polar_factors(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The polar factor of each matrix, as the group's options approximate it."""
        return orthogonalize(
            momenta,
            method=group["orthogonalization"],
            steps=group["ns_steps"],
            coefficients=group["ns_coefficients"],
            dtype=group["ns_dtype"],
        )


def beside_adamw(
    kind: type[SpectralOptimizer],
    model: nn.Module,
    lr: float,
    options: dict[str, Any],
    *,
    matrices: Matrices,
    betas: tuple[float, float],
    eps: float,
) -> CompositeOptimizer:
    """``kind`` on the matrices of ``model`` that :func:`~cbs.optimizers.routing.route` names, AdamW on the rest.

    Args:
        kind: the optimizer of the matrices; a model without any is trained by AdamW alone.
        model: the model.
        lr: learning rate of both parts.
        options: options of ``kind``; its ``weight_decay`` is also AdamW's.
        matrices: see :func:`~cbs.optimizers.routing.route`.
        betas: AdamW's.
        eps: AdamW's.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    kind.check({"lr": lr, **options})
    routing = route(model, matrices)
    parts: list[torch.optim.Optimizer] = []
    if routing.matrices:
        parts.append(kind(routing.matrices, lr, **options))
    if routing.rest:
        fused, decay = has_fused_kernel(routing.rest), options["weight_decay"]
        parts.append(torch.optim.AdamW(routing.rest, lr=lr, betas=betas, eps=eps, weight_decay=decay, fused=fused))
    return CompositeOptimizer(parts)
