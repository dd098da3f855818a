"""Check on a few entries whether ``.grad`` is the sum of what the backward passes of a step computed."""

from __future__ import annotations  # torch may be built without the process groups that they name

import math
import random
from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import is_sharded, sharding_groups, sum_over_ranks

ENTRIES = 8  # Number of parameter tensors of which one entry is followed during a step; each step draws new ones

# Largest relative difference that averaging over ranks, which may round to bfloat16, can cause: in a single entry, and
# in a factor common to all entries.
OVER_RANKS, IN_COMMON = 0.01, 0.004


class GradientSample:
    """Sum of a few entries of the gradients, in the order and precision in which autograd accumulates ``.grad``.

    At the end of a step ``.grad`` equals this sum unless something changed it.

    Args:
        parameters: the trainable parameter tensors.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._eligible = [index for index, tensor in enumerate(parameters) if tensor.numel()]
        self._random = random.Random(0)
        self.forget()

    def forget(self) -> None:
        """Start a new step and draw other entries."""
        chosen = self._random.sample(self._eligible, min(ENTRIES, len(self._eligible)))
        self._entries = {
            index: tuple(self._random.randrange(size) for size in self._parameters[index].shape) for index in chosen
        }
        self._sums: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._passes: Counter[int] = Counter()

    def add(self, index: int, gradient: Tensor) -> None:
        """Record the gradient that a backward pass computed for a parameter tensor, before it is added to ``.grad``."""
        entry = self._entries.get(index)
        if entry is None:
            return
        value = gradient.detach()[entry].clone()
        self._passes[index] += 1
        if index in self._sums:
            total, _, before = self._sums[index]
            self._sums[index] = total + value, value, before
        else:
            grad = self._parameters[index].grad
            self._sums[index] = value, value, torch.zeros_like(value) if grad is None else _held(grad, entry).clone()

    def compare(self, *, divisor: float = 1.0, ranks: Sequence[dist.ProcessGroup] = ()) -> None:
        """Compare the sums with ``.grad``, and start a new step. A collective if ``ranks`` are given.

        Args:
            divisor: factor by which ``.grad`` was divided since the backward pass, as by a GradScaler.
            ranks: process groups whose ranks average their gradients, one group after the other.

        Raises:
            ConfigError: if they differ; the message says what probably happened and what to do.
        """
        indices = sorted(self._entries) if ranks or self._sums else []
        entries, passes = self._entries, max(self._passes.values(), default=0)
        if not indices:
            self.forget()
            return
        gradients = [self._parameters[index].grad for index in indices]
        gone = all(gradient is None for gradient in gradients)
        device = self._parameters[indices[0]].device
        zero = torch.zeros((), device=device)
        actual = [
            zero if grad is None else _held(grad, entries[index])
            for index, grad in zip(indices, gradients, strict=True)
        ]
        rows = [actual, *zip(*(self._sums.get(index, (zero, zero, zero)) for index in indices), strict=True)]
        rounding = max(torch.finfo(value.dtype).eps for value in rows[0]) ** 0.5
        self.forget()
        values = [value.to(device) for row in rows for value in row]
        table = torch.stack(values).cpu().real.double().view(len(rows), -1)
        if ranks:
            world = math.prod(map(dist.get_world_size, ranks))
            shards = sharding_groups(self._parameters[indices[0]])
            held = [0, 3] if shards else []  # rows sharded over the ranks; for the others every rank has its own values
            table[held] = sum_over_ranks([table[held].to(device)], shards)[0].cpu() if held else table[held]
            own = [row for row in (1, 2, 3) if row not in held]
            table[own] = sum_over_ranks([table[own].to(device)], ranks)[0].cpu() / world
            rounding = max(rounding, OVER_RANKS)
        table[1:] /= divisor
        _require_equal(table, rounding, passes, gone=gone)


def _held(tensor: Tensor, entry: tuple[int, ...]) -> Tensor:
    """Return an entry of a tensor; for a sharded tensor zero on all ranks but the one that holds it."""
    if not is_sharded(tensor):
        return tensor[entry]
    from torch.distributed.tensor import Shard

    local, place = tensor.to_local(), list(entry)
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            mesh, along = tensor.device_mesh, placement.dim
            place[along] -= mesh.get_local_rank(dimension) * -(-tensor.shape[along] // mesh.size(dimension))
    inside = all(0 <= at < size for at, size in zip(place, local.shape, strict=True))
    return local[tuple(place)] if inside else local.new_zeros(())


def _require_equal(table: Tensor, rounding: float, passes: int, *, gone: bool) -> None:
    actual, expected, latest, before = table
    factor = float(actual @ expected / (expected @ expected)) if expected.any() else 0.0
    common = rounding < OVER_RANKS or not factor or abs(factor - 1) <= IN_COMMON
    if not table.isfinite().all() or (common and _near(actual, expected, rounding)):
        return
    if gone:
        raise ConfigError(
            "the gradients of the step are gone: measure before optimizer.zero_grad(), "
            "and do not run the optimizer inside the backward pass"
        )
    if passes > 1 and _near(actual, latest, rounding):
        raise ConfigError(
            f"{passes} backward passes since the last measured step, and .grad holds only the latest: call step() once "
            "per optimizer step (to measure only some, pass every=), and run passes outside training under paused()"
        )
    if before.any() and _near(actual, expected + before, rounding):
        raise ConfigError(".grad was not empty before the first backward pass of the step: call optimizer.zero_grad()")
    if factor and _near(actual, factor * expected, rounding):
        raise ConfigError(
            f".grad is {factor:.3g} times what the backward passes computed: it was clipped, scaled or averaged since; "
            "measure before that (after scaler.unscale_, pass gradients_unscaled=True)"
        )
    raise ConfigError(
        ".grad is not the sum of what the backward passes of the step computed: it was changed since, for example by "
        "added weight decay or noise, a hook, or a wrapper that averages over ranks; measure before that, and pass the "
        "wrapper to the noise scale"
    )


def _near(left: Tensor, right: Tensor, rounding: float) -> bool:
    """Return whether entries agree up to rounding; entries much smaller than the largest get a looser tolerance."""
    size = torch.maximum(left.abs(), right.abs())
    return bool(((left - right).abs() <= rounding * (size + 1e-3 * size.max())).all())
