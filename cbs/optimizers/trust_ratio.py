"""What optimizers share that scale Adam's direction, tensor by tensor, with the size of the weights.

For a weight w with gradient g they take the direction

    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    d  = m / (sqrt(v) + eps) + weight_decay * w        m and v bias-corrected where the optimizer says so

and move by ``-lr * rescale(w, d)``. They differ in ``rescale``: by one ratio of norms for each tensor (LAMB, You et al.
2020, arXiv 1904.00962, Algorithm 2) or by one for each entry (MERIT, ICML 2025, arXiv 2508.20577, Algorithm 1).
Weight decay is part of the direction, so it goes through the ratio too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten
from torch.optim.optimizer import ParamsT

_MOMENTS = ("exp_avg", "exp_avg_sq")
_SMALL = 2**16
"""Tensors of up to this many entries share a bucket: what they cost is dispatch, not arithmetic."""


@dataclass
class Bucket:
    """Tensors that are updated as one flat vector, one after the other, those of equal shape side by side.

    Attributes:
        params: the parameters.
        moments: first and second moment, each a vector of all entries; the optimizer's state holds views of them.
        step: updates so far.
    """

    params: list[Tensor]
    moments: tuple[Tensor, Tensor]
    step: int

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor for each parameter as one vector in the type of the moments."""
        return flatten(tensors).to(self.moments[0].dtype)

    def tensors(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Views of ``vector`` in the shapes of the parameters."""
        return unflatten(vector, self.params)

    def stacks(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Views of ``vector``, one for each run of tensors of equal shape: ``[count, *shape]``."""
        return unflatten(vector, self._stacks)

    @cached_property
    def sizes(self) -> list[int]:
        """Entries of each tensor."""
        return [param.numel() for param in self.params]

    @cached_property
    def _stacks(self) -> list[Tensor]:
        stacks, start = [], 0
        for shape, run in groupby(param.shape for param in self.params):
            count = len(list(run))
            end = start + count * shape.numel()
            stacks.append(self.moments[0][start:end].view(count, *shape))
            start = end
        return stacks


class TrustRatioOptimizer(torch.optim.Optimizer):
    """Adam's direction, rescaled against the weights by a subclass.

    The moments are kept in float32 for parameters of a lower precision and in the parameter's own type otherwise.
    Parameters without a gradient are skipped.

    Args:
        params: parameters, or groups of them as torch.optim takes them; every option can be set for a group.
        lr: learning rate, at least 0.
        betas: decay of the first and of the second moment per step, each in [0, 1).
        eps: added to the root of the second moment, at least 0.
        weight_decay: coefficient of the weight inside the direction, at least 0.

    Raises:
        ValueError: if a value is outside its domain.
    """

    bias_correction: ClassVar[bool]

    def __init__(self, params: ParamsT, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self._buckets: dict[int, tuple[list[Tensor], list[Bucket]]] = {}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def rescale(self, weight: Tensor, direction: Tensor, bucket: Bucket) -> Tensor:
        """The update per unit of learning rate; may overwrite ``direction``, must leave ``weight`` alone.

        Args:
            weight: all weights of the bucket, shape ``[entries]``.
            direction: their directions, same shape.
            bucket: where each tensor lies in them.
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
        for index, group in enumerate(self.param_groups):
            for bucket in self._buckets_of(index, [param for param in group["params"] if param.grad is not None]):
                weight = bucket.flatten(bucket.params)
                direction = self._direction(bucket, weight, group)
                updates = bucket.tensors(self.rescale(weight, direction, bucket))
                torch._foreach_add_(bucket.params, updates, alpha=-group["lr"])
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; see :meth:`torch.optim.Optimizer.add_param_group`."""
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a copy of ``state_dict``; the moments keep their precision."""
        super().load_state_dict(state_dict)
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            # torch casts what it loads to the parameter's type, which would round the moments of bfloat16 weights.
            for name in _MOMENTS if key in state_dict["state"] else ():
                saved = state_dict["state"][key][name]
                self.state[param][name] = saved.to(param.device, _state_dtype(param), copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._buckets = {}

    def _direction(self, bucket: Bucket, weight: Tensor, group: dict[str, Any]) -> Tensor:
        beta1, beta2 = group["betas"]
        mean, square = bucket.moments
        gradient = bucket.flatten([param.grad for param in bucket.params if param.grad is not None])
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        bucket.step += 1
        denominator, eps, factor = square.sqrt(), group["eps"], 1.0
        if self.bias_correction:
            # (m/c1) / (sqrt(v/c2) + eps) = (sqrt(c2)/c1) m / (sqrt(v) + eps sqrt(c2))
            root = math.sqrt(1 - beta2**bucket.step)
            eps, factor = eps * root, root / (1 - beta1**bucket.step)
            for param in bucket.params:
                self.state[param]["step"] = bucket.step
        direction = torch.div(mean, denominator.add_(eps), out=denominator)
        if factor != 1.0:
            direction.mul_(factor)
        return direction.add_(weight, alpha=group["weight_decay"]) if group["weight_decay"] else direction

    def _buckets_of(self, index: int, params: list[Tensor]) -> list[Bucket]:
        """The buckets of a group; built anew when other parameters have gradients than at the step before."""
        known, buckets = self._buckets.get(index, ([], []))
        if len(known) != len(params) or any(old is not new for old, new in zip(known, params, strict=True)):
            members: dict[tuple[Any, ...], list[Tensor]] = {}
            for position, param in enumerate(param for param in params if param.numel() > 0):
                step, alone = self.state[param].get("step", 0), position if param.numel() > _SMALL else None
                members.setdefault((step, param.dtype, param.device, alone), []).append(param)
            buckets = [self._bucket(sorted(some, key=_shape), key[0]) for key, some in members.items()]
            self._buckets[index] = params, buckets
        return buckets

    def _bucket(self, params: list[Tensor], step: int) -> Bucket:
        if any(param.grad is not None and param.grad.is_sparse for param in params):
            raise RuntimeError(f"{type(self).__name__} needs dense gradients; build the embedding with sparse=False")
        states = [self.state[param] for param in params]
        blank = [torch.zeros_like(param, dtype=_state_dtype(param)) for param in params]
        mean, square = (
            torch.cat([state.get(name, zeros).reshape(-1) for state, zeros in zip(states, blank, strict=True)])
            for name in _MOMENTS
        )
        bucket = Bucket(params, (mean, square), step)
        for state, *views in zip(states, bucket.tensors(mean), bucket.tensors(square), strict=True):
            state.update(zip(_MOMENTS, views, strict=True))
        return bucket


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _state_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def _check(group: dict[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        if not 0.0 <= group[name] < math.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {group[name]}")
    betas = group["betas"]
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
