"""What torch's own optimizers promise and ours keep.

State lives in ``optimizer.state`` and nowhere else, options in ``param_groups``. What cannot work is refused when the
optimizer is built: unknown options, values outside their domain, complex parameters. A loaded state keeps the precision
that the optimizer keeps it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.registry.domains import is_whole

NEAR = 0.75
"""A key of a group that is this similar to an option is taken for that option misspelt; others are the owner's notes,
as ``name``, ``lr_scale`` and what schedulers write, ``initial_lr`` or ``max_momentum``, are."""


class CheckedOptimizer(torch.optim.Optimizer):
    """An optimizer over real parameters whose options are checked and whose state loads as it was saved.

    Subclasses call ``super().__init__(params, locals())`` first of all in a constructor whose arguments are their
    options, extend :meth:`check`, and say with :meth:`state_dtype` in which type they keep their state. Copies and
    pickles have what attributes without an underscore hold; hooks they lack, as those of torch's optimizers do.
    """

    def __init__(self, params: ParamsT, options: Mapping[str, Any]) -> None:
        super().__init__(params, {k: v for k, v in options.items() if k not in ("self", "params", "__class__")})

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuse options outside their domain; ``group`` has them all.

        Raises:
            ValueError: with the name and the value.
        """
        rate = group["lr"]
        if isinstance(rate, Tensor) and rate.numel() != 1:
            raise ValueError(f"lr must be a number or a tensor of one element, got one of shape {tuple(rate.shape)}")
        for name in ("lr", "weight_decay"):
            if name in group:
                check_size(name, group[name])

    def check_parameter(self, param: Tensor) -> None:
        """Refuse what cannot be optimized.

        Raises:
            ValueError: if it is complex.
        """
        if param.is_complex():
            raise ValueError(f"{type(self).__name__} takes real parameters, got one of type {param.dtype}")

    def state_dtype(self, name: str, param: Tensor) -> torch.dtype | None:
        """The type in which floating point state called ``name`` is kept for ``param``; ``None`` for torch's choice."""
        return torch.float32 if name == "step" else state_dtype(param)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; see :meth:`torch.optim.Optimizer.add_param_group`.

        Raises:
            ValueError: if an option is misspelt or outside its domain, or a parameter is refused.
        """
        for key in set(param_group) - set(self.defaults) - {"params", "param_names"}:
            if key == "maximize" and param_group[key]:
                raise ValueError(f"{type(self).__name__} minimizes; negate the loss in place of maximize=True")
            near = get_close_matches(key, self.defaults, n=1, cutoff=NEAR)
            if near and not key.endswith(f"_{near[0]}"):
                raise ValueError(f"{type(self).__name__} has no option {key!r}; did you mean {near[0]!r}?")
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            for param in self.param_groups[-1]["params"]:
                self.check_parameter(param)
        except ValueError:
            del self.param_groups[-1]
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ``state_dict`` as the hooks leave it; see :meth:`torch.optim.Optimizer.load_state_dict`.

        Raises:
            ValueError: if the groups do not match, or the parameters are named here and there and in another order.
        """
        seen: list[dict[str, Any]] = []

        def look(_: torch.optim.Optimizer, final: dict[str, Any]) -> None:
            self._check_order(final)
            seen.append(final)

        # Runs after all other hooks, so it sees what they have made of the state.
        handle = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self._keep_precision(seen[-1])

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler leaves its own step() among the attributes.
        return {k: v for k, v in vars(self).items() if not k.startswith("_") and not callable(v)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        defaults = dict(vars(self).get("defaults") or state["defaults"])
        super().__setstate__(state)
        # torch adds "differentiable", which is no option of ours.
        self.defaults = defaults
        self.complete()

    def complete(self) -> None:
        """Fill in what loaded groups lack: a state dict of fewer options than there are leaves the others as built."""
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def _check_order(self, state_dict: dict[str, Any]) -> None:
        # State goes by position, so another order would give parameters each other's.
        every = (self.param_groups, state_dict["param_groups"])
        here, saved = ([name for group in groups for name in group.get("param_names", [])] for groups in every)
        if here != saved and sorted(here) == sorted(saved):
            name, other = next(pair for pair in zip(here, saved, strict=True) if pair[0] != pair[1])
            raise ValueError(
                f"the state was saved with its parameters in another order, {other!r} where {name!r} is here; build "
                "the optimizer in that order, or reorder the state in a load_state_dict pre-hook"
            )

    def _keep_precision(self, state_dict: dict[str, Any]) -> None:
        # torch casts what it loads to the parameter's type, which would round the float32 state of bfloat16 weights.
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            for name, saved in state_dict["state"].get(key, {}).items():
                if isinstance(saved, Tensor):
                    loaded = self.state[param][name]
                    dtype = self.state_dtype(name, param) if saved.is_floating_point() else saved.dtype
                    # A copy, since a step writes to the state and what was loaded may still be another optimizer's.
                    self.state[param][name] = saved.to(loaded.device, dtype or loaded.dtype, copy=True)


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """What the closure of a step returns, with gradients enabled; ``None`` without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def check_size(name: str, value: Any) -> None:
    """Refuse what is not a finite number of at least 0.

    Raises:
        ValueError: with the name and the value.
    """
    if isinstance(value, bool | str) or not 0.0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def check_decay(name: str, value: Any) -> None:
    """Refuse what is not a decay per step.

    Raises:
        ValueError: with the name and the value.
    """
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is none of ``known`` with a ``ValueError`` that lists them."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least`` with a ``ValueError``."""
    if not is_whole(value, least):
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def needs_dense_gradients(name: str) -> RuntimeError:
    """The error of a sparse gradient, for an optimizer of that name."""
    return RuntimeError(f"{name} needs dense gradients; build the embedding with sparse=False")


def misfit(optimizer: torch.optim.Optimizer, name: str, tensor: Tensor, param: Tensor) -> RuntimeError:
    """The error of a gradient or state that cannot belong to a parameter as it is."""
    shown, wanted = (f"{list(one.shape)}, {one.dtype}, {one.device}" for one in (tensor, param))
    return RuntimeError(
        f"{type(optimizer).__name__}: the {name} ({shown}) does not fit its parameter ({wanted}); one that changes "
        "shape, type or device needs a new gradient and new state: del optimizer.state[parameter]"
    )


def state_dtype(tensor: Tensor) -> torch.dtype:
    """float32 for half precision, else the tensor's own type."""
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype
