"""Adam (Kingma & Ba 2015, arXiv 1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101).

Both are torch's, with the fused kernel where the memory layout allows it.

The kernel reads weights, gradients and state in memory order and assumes that all have the same layout, which torch
does not check on a CPU. State saved for contiguous weights and loaded for weights in ``channels_last``, or a gradient
assigned by hand, gives wrong steps without an error; with state of another shape or an expanded parameter the kernel
writes out of bounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.contract import evaluated, misfit

_FUSED_DEVICES = ("cpu", "cuda")

# Without torch's wrapper: the wrapper of the subclass's own step runs the hooks, once.
_adam_step = inspect.unwrap(torch.optim.Adam.step)


class Adam(torch.optim.Adam):
    """``torch.optim.Adam`` whose step is fused where all tensors of a group have the same memory layout.

    Otherwise parameters are updated one at a time.

    Raises:
        RuntimeError: in a step, if state does not have the shape of its parameter.
    """

    # Makes a GradScaler unscale the gradients, which a step of one tensor at a time cannot do.
    _step_supports_amp_scaling = property(lambda _: False, lambda _, given: None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = evaluated(closure)
        given = [group["fused"] for group in self.param_groups]
        for group in self.param_groups:
            group["fused"] = group["fused"] and all(map(self._lies_alike, group["params"]))
        try:
            _adam_step(self)
        finally:
            for group, fused in zip(self.param_groups, given, strict=True):
                group["fused"] = fused
        return loss

    def _lies_alike(self, param: Tensor) -> bool:
        if param.grad is None or param.grad.layout is not torch.strided:
            return True
        state = self.state[param].items() if param in self.state else ()
        others = [param.grad]
        for name, value in state:
            if name != "step":
                if value.shape != param.shape:
                    raise misfit(self, name, value, param)
                others.append(value)
        if param.is_contiguous() and all(other.is_contiguous() for other in others):
            return True
        # empty_like() of a parameter with gaps or repetitions has other strides than the parameter.
        return all(other.stride() == param.stride() for other in (torch.empty_like(param), *others))


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW``, fused under the same condition as :class:`Adam`."""


def has_fused_kernel(params: Iterable[nn.Parameter]) -> bool:
    """Return whether torch's fused kernel supports all ``params``: real floating point, on a CPU or a CUDA device."""
    return all(param.is_floating_point() and param.device.type in _FUSED_DEVICES for param in params)


@optimizer(
    "adam",
    lr_grid=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="adam",
    geometry="l1",
    known_as=("adam", "adagrad", "adadelta", "rmsprop", "adan", "adabelief"),
    width_rule="adam",
    paper="Kingma & Ba 2015, arXiv 1412.6980",
    decoupled_decay=False,
    published={"betas": (0.9, 0.999)},
)
def adam(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> Adam:
    """Adam with weight decay added to the gradient; without decay it is ``adamw``, step for step."""
    params = trainable(model)
    fused = has_fused_kernel(params)
    return Adam(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused)


@optimizer(
    "adamw",
    lr_grid=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="adam",
    geometry="l1",
    paper="Loshchilov & Hutter 2019, arXiv 1711.05101",
    published={"betas": (0.9, 0.999)},
)
def adamw(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> AdamW:
    """Adam with decoupled weight decay, torch's fused kernel where there is one."""
    params = trainable(model)
    fused = has_fused_kernel(params)
    return AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)
