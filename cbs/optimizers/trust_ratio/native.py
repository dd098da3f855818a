"""LAMB's and MERIT's step in compiled C, for float32 tensors in the memory of a CPU.

``native.c`` is compiled once with the machine's C compiler and kept in the user's cache folder. A step then reads g, m,
v, w and writes m, v as it takes the sizes of weights and directions, and reads m, v, w again (or directions that fit a
cache) as it writes w: 40 bytes per parameter, the least a trust ratio can do with. It runs on one thread.

State and formulas are those of the portable path, so a run can change over at any step; results differ by rounding.
LAMB's squares are added up in float64, so weights above 1e19 do not overflow as they do in the portable path.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbs.errors import MissingDependencyError
from cbs.optimizers.trust_ratio.blocks import Bucket, Stack

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    # Leave to use vector instructions for roots and choices; neither changes a result.
    "-fno-math-errno",
    "-fno-trapping-math",
    # Every product is rounded, so that machines with and without fused multiply-add agree.
    "-ffp-contract=off",
)
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
    """Update a bucket; ``False``, with nothing done, where only the portable path can.

    That is where parameters are not float32, not in the memory of a CPU, not contiguous or sharded, where the group is
    capturable, or where ``foreach`` is ``False``.

    Args:
        bucket: the parameters, all with a gradient, and their state.
        group: their options.
        rule: from sizes to updates.

    Raises:
        MissingDependencyError: if there is no C compiler.
    """
    if not serves(bucket, group):
        return False
    library, plan = kernel(), bucket.plan
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
        _adam(group, group["weight_decay"] if bucket.decayed else 0.0, step),
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
        ),
        pointers(*[param.data_ptr() for param in bucket.params]),
        pointers(*[gradient.data_ptr() for gradient in gradients]),
        *plan.memory,
        plan.total,
    )
    return True


def serves(bucket: Bucket, group: dict[str, Any]) -> bool:
    """Whether :func:`update` can update a bucket."""
    return (
        bucket.kind == (torch.device("cpu"), torch.float32)
        and bucket.layout is None
        and bucket.params[0].dtype is torch.float32
        and not group["capturable"]
        and group["foreach"] is not False
        and type(bucket.states[0]) is Tensor
        and all(map(Tensor.is_contiguous, bucket.params))
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


@cache
def kernel() -> ctypes.CDLL:
    """The compiled ``native.c``, from the cache folder or compiled now.

    Raises:
        MissingDependencyError: if it is not in the cache and there is no compiler, or the compiler fails.
    """
    library = ctypes.CDLL(str(build()))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    constants: list[Any] = [ctypes.POINTER(_Adam), ctypes.POINTER(_Rule)]
    library.update.argtypes = [pointer, integer, *constants, *[pointer] * 7, integer]
    library.update.restype = None
    return library


def build() -> Path:
    """Compile ``native.c`` unless the cache folder has it, and say where it is; several processes may do so at once.

    Raises:
        MissingDependencyError: if there is no compiler, or the compiler fails.
    """
    key = repr((SOURCE.read_bytes(), FLAGS, platform.machine(), _processor()))
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cbs"
    place = folder / f"trust_ratio-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if place.exists():
        return place
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise MissingDependencyError(
            f"native=True needs a C compiler, and none of {', '.join(COMPILERS)} is in PATH; install one "
            "(apt-get install gcc, xcode-select --install) or leave native=False"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / place.name
        # Some compilers do not know the machine they run on.
        for tuned in (["-march=native"], []):
            run = subprocess.run(
                [compiler, *FLAGS, *tuned, str(SOURCE), "-o", str(made), "-lm"], capture_output=True, text=True
            )
            if run.returncode == 0:
                # All at once: another process finds the whole file or none.
                os.replace(made, place)
                return place
    first = next((line for line in run.stderr.splitlines() if "error" in line), "it said nothing")
    raise MissingDependencyError(f"native=True: {compiler} cannot compile {SOURCE}: {first}; leave native=False")


def _processor() -> str:
    """What tells processors apart whose instructions differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
