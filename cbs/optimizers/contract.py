"""The contract of torch's optimizers, which those of this package keep.

State is in ``optimizer.state`` only, options in ``param_groups``. Invalid arguments are refused when the optimizer is
built: unknown options, invalid values, complex parameters. Loaded state has the precision in which the optimizer keeps
its state.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from cbs.registry.values import is_whole

# Similarity from which a key of a group counts as a misspelt option, if it is at most so many letters off. Other keys
# are kept as the user's own, such as `name`, `weight_decay_mult` and those that schedulers write, `initial_lr`.
NEAR, LETTERS = 0.75, 2


class CheckedOptimizer(torch.optim.Optimizer):
    """An optimizer over real parameters whose options are checked and whose state loads as it was saved.

    Subclasses call ``super().__init__(params, locals())`` first in a constructor whose arguments are their options,
    extend :meth:`check`, and define with :meth:`state_dtype` the dtype of their state. Copies and pickles keep
    attributes without a leading underscore, but no hooks, like those of torch's optimizers.
    """

    def __init__(self, params: ParamsT, options: Mapping[str, Any]) -> None:
        super().__init__(params, {k: v for k, v in options.items() if k not in ("self", "params", "__class__")})

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise for invalid options; ``group`` contains all options.

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
        """Raise for a parameter that cannot be optimized.

        Raises:
            ValueError: if it is complex.
        """
        if param.is_complex():
            raise ValueError(f"{type(self).__name__} takes real parameters, got one of type {param.dtype}")

    def state_dtype(self, name: str, param: Tensor) -> torch.dtype | None:
        """Return float32 for half-precision tensors, else the tensor's own dtype."""
        return torch.float32 if name == "step" else state_dtype(param)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; see :meth:`torch.optim.Optimizer.add_param_group`.

        Raises:
            ValueError: if an option is misspelt or invalid, or a parameter is refused.
        """
        for key in set(param_group) - set(self.defaults) - {"params", "param_names"}:
            if key == "maximize" and param_group[key]:
                raise ValueError(f"{type(self).__name__} minimizes; negate the loss instead of maximize=True")
            near = get_close_matches(key, self.defaults, n=1, cutoff=NEAR)
            if near and not key.endswith(f"_{near[0]}") and _letters_off(key, near[0]) <= LETTERS:
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
        """Load ``state_dict`` as the hooks return it; see :meth:`torch.optim.Optimizer.load_state_dict`.

        Raises:
            ValueError: if the groups do not match, or both have parameter names and these are in another order.
        """
        load_precisely(self, super().load_state_dict, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler leaves its own step() among the attributes.
        return {k: v for k, v in vars(self).items() if not k.startswith("_") and not callable(v)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        defaults = dict(vars(self).get("defaults") or state["defaults"])
        super().__setstate__(state)
        # torch adds "differentiable", which is not an option here.
        self.defaults = defaults
        self.complete()

    def complete(self) -> None:
        """Fill in missing options of loaded groups: options that a state dict lacks stay as constructed."""
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def _check_order(self, state_dict: dict[str, Any]) -> None:
        # State is assigned by position, so in another order parameters would get each other's state.
        every = (self.param_groups, state_dict["param_groups"])
        here, saved = ([name for group in groups for name in group.get("param_names", [])] for groups in every)
        if here != saved and sorted(here) == sorted(saved):
            name, other = next(pair for pair in zip(here, saved, strict=True) if pair[0] != pair[1])
            raise ValueError(
                f"the state was saved with its parameters in another order, {other!r} where {name!r} is here; build "
                "the optimizer in that order, or reorder the state in a load_state_dict pre-hook"
            )


def load_precisely(optimizer: Any, load: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]) -> None:
    """Load a state whose tensors then have the types that ``optimizer.state_dtype`` says: torch casts what it loads to
    the parameter's type, which would round the float32 state of bfloat16 weights.

    Args:
        optimizer: the optimizer.
        load: torch's own ``load_state_dict``.
        state_dict: what to load.
    """
    seen: list[dict[str, Any]] = []

    def look(_: torch.optim.Optimizer, final: dict[str, Any]) -> None:
        if isinstance(optimizer, CheckedOptimizer):
            optimizer._check_order(final)
        seen.append(final)

    # Runs after all other hooks, so it receives the state that they return.
    handle = optimizer.register_load_state_dict_pre_hook(look)
    try:
        load(state_dict)
    finally:
        handle.remove()
    keys = [key for group in seen[-1]["param_groups"] for key in group["params"]]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for key, param in zip(keys, params, strict=True):
        for name, saved in seen[-1]["state"].get(key, {}).items():
            if isinstance(saved, Tensor):
                loaded = optimizer.state[param][name]
                dtype = optimizer.state_dtype(name, param) if saved.is_floating_point() else saved.dtype
                # A copy, since a step writes to the state and what was loaded may still be another optimizer's.
                optimizer.state[param][name] = saved.to(loaded.device, dtype or loaded.dtype, copy=True)


def _letters_off(key: str, option: str) -> int:
    """Return how many letters are to be changed, left out or put in to make one of the other; swapped ones count 2."""
    parts = SequenceMatcher(None, key, option, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal")


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """Return the result of a step's closure, called with gradients enabled; ``None`` without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def check_size(name: str, value: Any) -> None:
    """Raise unless the value is a finite number of at least 0.

    Raises:
        ValueError: with the name and the value.
    """
    if isinstance(value, bool | str) or not 0.0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def check_decay(name: str, value: Any) -> None:
    """Raise unless the value is a decay per step, in [0, 1).

    Raises:
        ValueError: with the name and the value.
    """
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ``ValueError`` with the list of ``known`` values unless the value is one of them."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise ``ValueError`` unless the value is an integer of at least ``least``."""
    if not is_whole(value, least):
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def needs_dense_gradients(name: str) -> RuntimeError:
    """Return the error for a sparse gradient, for an optimizer of that name."""
    return RuntimeError(f"{name} needs dense gradients; build the embedding with sparse=False")


def misfit(optimizer: torch.optim.Optimizer, name: str, tensor: Tensor, param: Tensor) -> RuntimeError:
    """Return the error for a gradient or state that cannot belong to the parameter as it is now."""
    shown, wanted = (f"{list(one.shape)}, {one.dtype}, {one.device}" for one in (tensor, param))
    return RuntimeError(
        f"{type(optimizer).__name__}: the {name} ({shown}) does not fit its parameter ({wanted}); one that changes "
        "shape, type or device needs a new gradient and new state: del optimizer.state[parameter]"
    )


def state_dtype(tensor: Tensor) -> torch.dtype:
    """Return float32 for half precision, else the tensor's own type."""
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that a wrapper calls; a method without wrapper as it is.

    Methods of :class:`torch.optim.Optimizer` that ``torch.compile`` should not trace are wrapped, and the wrapper
    imports the compiler at its first call, which takes more than a second of every process that trains. Outside
    compiled code the method without it does the same.
    """
    return getattr(method, "__wrapped__", method)


@contextmanager
def building_plainly() -> Iterator[None]:
    """Within the block optimizers are built without the wrapper."""
    wrapped = Optimizer.add_param_group
    Optimizer.add_param_group = unwrapped(wrapped)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.add_param_group = wrapped  # type: ignore[method-assign]
