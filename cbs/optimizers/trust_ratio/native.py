"""LAMB's and MERIT's step in compiled C, for float32 tensors in the memory of a CPU.

``native.c`` is compiled once with the machine's C compiler and kept in the user's cache folder, see
:mod:`cbs.optimizers.trust_ratio.kernel`. A step then reads g, m, v, w and writes m, v as it takes the sizes of weights
and directions, and reads m, v, w again (or directions that fit a cache) as it writes w: 40 bytes per parameter, the
least a trust ratio can do with. It runs on one thread.

State and formulas are those of the portable path, so a run can change over at any step; results differ by rounding.
LAMB's squares are added up in float64, so weights above 1e19 do not overflow as they do in the portable path.

The option ``native`` of a group says what is asked for: ``True`` the compiled code, which must be there; ``False`` the
portable path; ``None``, the default, the compiled code where it is there or can be made.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from cbs.optimizers.trust_ratio import kernel
from cbs.optimizers.trust_ratio.blocks import Bucket, Stack

_PLAIN = (Tensor, nn.Parameter)
KEPT = 2**22
"""Up to so many entries of a bucket, directions are kept between the passes rather than computed again."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the sizes of weights w and directions d become what is added to the weights.

    Attributes:
        by_max: whether sizes are largest entries, else Euclidean norms of whole tensors.
        low: lower bound of the size of w.
        high: its upper bound.
        blank: the ratio where the size of w or d is 0.
        clip: bound of an entry of the scaled direction.
        floor: whether the ratio of the whole tensor bounds those of rows and columns from below.
        mend: whether a ratio that is NaN is 1, and an infinite one the largest number.
        zero: whether ``blank`` is for d alone, the ratio 0 where w is 0, and NaN where that is all of a tensor.
    """

    by_max: bool
    low: float = 0.0
    high: float = math.inf
    blank: float
    clip: float = math.inf
    floor: bool = True
    mend: bool = False
    zero: bool = False


class _Adam(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_float) for name in ("enter1", "keep2", "enter2", "scale", "eps", "decay"))


class _Rule(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_float) for name in ("lr", "clip", "low", "high", "blank")),
        *((name, ctypes.c_int32) for name in ("scaled", "by_max", "floor", "mend", "zero")),
    )


@dataclass(frozen=True)
class Plan:
    """A bucket as ``native.c`` sees it: its stacks, and addresses that do not change from step to step."""

    stacks: ctypes.Array[ctypes.c_int64]
    count: int
    memory: tuple[int | None, ...]
    total: int


def update(bucket: Bucket, group: dict[str, Any], rule: Rule) -> bool:
    """Update a bucket; ``False``, with nothing done, where the portable path has to.

    That is where :func:`serves` is ``False``, where ``native`` is, and where that is ``None`` and there is no library.

    Args:
        bucket: the parameters, all with a gradient, and their state.
        group: their options.
        rule: from sizes to updates.

    Raises:
        MissingDependencyError: if ``native`` is ``True`` and there is no library.
    """
    if group["native"] is False or not serves(bucket, group):
        return False
    library, plan = kernel.required() if group["native"] else kernel.automatic(), bucket.plan
    if library is None:
        return False
    if plan is None:
        plan = bucket.plan = plan_of(bucket)
    # Kept in a list: a gradient made contiguous must outlive the call.
    gradients = [param.grad.contiguous() for param in bucket.params]  # type: ignore[union-attr]
    pointers = ctypes.c_void_p * len(gradients)
    bucket.steps.add_(1)
    step = bucket.tiles[0].step.item() if group["bias_correction"] else math.inf
    library.update(
        plan.stacks,
        plan.count,
        ctypes.byref(_adam(group, group["weight_decay"] if bucket.decayed else 0.0, step)),
        ctypes.byref(
            _Rule(
                float(group["lr"]),
                rule.clip,
                rule.low,
                rule.high,
                rule.blank,
                bucket.scaled,
                rule.by_max,
                rule.floor,
                rule.mend,
                rule.zero,
            )
        ),
        pointers(*[param.data_ptr() for param in bucket.params]),
        pointers(*[gradient.data_ptr() for gradient in gradients]),
        *plan.memory,
        plan.total,
    )
    # As every operation of torch in place does: who saved the weights for a backward pass learns that they changed.
    increment_version(bucket.params)
    return True


def takes(param: Tensor, group: dict[str, Any]) -> bool:
    """Whether there is compiled code for a parameter: a plain dense one of float32 in the memory of a CPU."""
    return (
        type(param) in _PLAIN
        and param.device.type == "cpu"
        and param.dtype is torch.float32
        and param.layout is torch.strided
        and not group["capturable"]
        and group["foreach"] is not False
    )


def serves(bucket: Bucket, group: dict[str, Any]) -> bool:
    """Whether :func:`update` can update a bucket: :func:`takes` says so of its parameters, and they are contiguous."""
    return (
        bucket.kind == (torch.device("cpu"), torch.float32)
        and bucket.layout is None
        and takes(bucket.params[0], group)
        and type(bucket.states[0]) is Tensor
        and all(type(param) in _PLAIN and param.is_contiguous() for param in bucket.params)
    )


def plan_of(bucket: Bucket) -> Plan:
    """The plan of a bucket that is served."""
    numbers: list[int] = []
    sizes = 0
    for stack in bucket.stacks:
        numbers += [*_sides(stack), stack.by_line, stack.start, sizes]
        sizes += sum(shape.numel() for shape in stack.size_shapes())
    total = bucket.tiles[-1].end
    # The memory of the portable path holds all directions where it keeps them.
    whole = bucket.room >= total and total <= KEPT
    return Plan(
        stacks=(ctypes.c_int64 * len(numbers))(*numbers),
        count=len(bucket.stacks),
        memory=(
            *(state.data_ptr() for state in bucket.states),
            bucket.tiles[0].out.data_ptr() if whole else None,
            bucket.norms.data_ptr(),
            bucket.ratios.data_ptr(),
        ),
        total=bucket.norms.shape[1],
    )


def _sides(stack: Stack) -> tuple[int, int, int, int]:
    """How many tensors, of how many rows and columns, and entries of the dimensions from the third on."""
    count, *shape = stack.shape
    if len(shape) < 2:
        return count, 1, math.prod(shape), 1
    return count, shape[0], shape[1], math.prod(shape[2:])


def _adam(group: dict[str, Any], decay: float, step: float) -> _Adam:
    """Constants of Adam's direction. With the biases c1, c2 it is sqrt(c2)/c1 m / (sqrt(v) + eps sqrt(c2))."""
    beta1, beta2 = group["betas"]
    root = math.sqrt(_bias(beta2, step))
    return _Adam(1 - beta1, beta2, 1 - beta2, root / _bias(beta1, step), group["eps"] * root, decay)


def _bias(beta: float, step: float) -> float:
    return -math.expm1(step * math.log(beta)) if beta > 0.0 else 1.0
