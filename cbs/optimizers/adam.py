"""Adam (Kingma & Ba 2015, arXiv 1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101).

Both are torch's, with the fused kernel where the memory layout allows it.

The kernel reads weights, gradients and state in memory order and assumes that all have the same layout, which torch
does not check on a CPU. State saved for contiguous weights and loaded for weights in ``channels_last``, or a gradient
assigned by hand, gives wrong steps without an error; with state of another shape or an expanded parameter the kernel
writes out of bounds.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as functional_adam

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.contract import evaluated, load_precisely, misfit, state_dtype

_FUSED_DEVICES = ("cpu", "cuda")

# Without torch's wrapper: the wrapper of the subclass's own step runs the hooks, once.
_adam_step = inspect.unwrap(torch.optim.Adam.step)

_PIECE = 2**22  # Entries of parameters that are updated together, so that their copies in float32 stay small


class Adam(torch.optim.Adam):
    """``torch.optim.Adam`` whose step is fused where all tensors of a group have the same memory layout.

    Otherwise parameters are updated one at a time. Parameters in half precision have float32 state, and their steps are
    computed in float32: in bfloat16 a second moment cannot be multiplied by 0.999.

    Raises:
        RuntimeError: in a step, if state does not have the shape of its parameter.
    """

    # Makes a GradScaler unscale the gradients, which a step of one tensor at a time cannot do.
    _step_supports_amp_scaling = property(lambda _: False, lambda _, given: None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = evaluated(closure)
        given = [group["fused"] for group in self.param_groups]
        half = any(state_dtype(param) is not param.dtype for group in self.param_groups for param in group["params"])
        for group in self.param_groups:
            # Per step, because a gradient may come in another layout at any time.
            group["fused"] = group["fused"] and all(map(self._lies_alike, group["params"]))
        try:
            for group in self.param_groups if half else ():
                for members in _pieces([param for param in group["params"] if param.grad is not None]):
                    self._step_in_float32(members, group)
            if not half:
                _adam_step(self)
        finally:
            for group, fused in zip(self.param_groups, given, strict=True):
                group["fused"] = fused
        return loss

    def state_dtype(self, name: str, param: Tensor) -> torch.dtype:
        """Return float32 for half-precision tensors, else the tensor's own dtype."""
        return torch.float32 if name == "step" else state_dtype(param)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load_precisely(self, super().load_state_dict, state_dict)

    def _step_in_float32(self, params: list[Tensor], group: dict[str, Any]) -> None:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        for param in params:
            state = self.state[param]
            if not state:
                on_device = group["fused"] or group["capturable"]
                state["step"] = torch.zeros((), dtype=torch.float32, device=param.device if on_device else "cpu")
                state.update({name: torch.zeros_like(param, dtype=state_dtype(param)) for name in names})
        weights = [param.to(state_dtype(param)) for param in params]
        beta1, beta2 = group["betas"]
        functional_adam(
            weights,
            [param.grad.to(state_dtype(param)) for param in params if param.grad is not None],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [self.state[param]["max_exp_avg_sq"] for param in params] if group["amsgrad"] else [],
            [self.state[param]["step"] for param in params],
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
        )
        torch._foreach_copy_(params, weights)

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


def _pieces(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield parameters in lists of about :data:`_PIECE` entries."""
    piece: list[Tensor] = []
    for param in params:
        piece.append(param)
        if sum(member.numel() for member in piece) >= _PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


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
