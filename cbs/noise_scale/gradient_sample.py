"""A few entries of the gradient: whether ``.grad`` is what the backward passes of a step add up to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import is_sharded, sum_over_ranks

ENTRIES = 8
"""Parameter tensors of which one entry is followed in a step, others in the next."""

OVER_RANKS = 0.05
"""Relative difference that averaging over ranks may make, which some round or compress."""


class GradientSample:
    """Adds up entries of the gradients that backward passes find, in the order and precision in which autograd adds
    them up in ``.grad``.

    What stands in ``.grad`` at the end of a step is that sum, unless somebody changed it. Sharded parameters are left
    out: no rank has their whole gradient.

    Args:
        parameters: the trainable parameter tensors.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._eligible = [index for index, tensor in enumerate(parameters) if tensor.numel() and not is_sharded(tensor)]
        self._random = random.Random(0)
        self.forget()

    def forget(self) -> None:
        """Start a new step, with other entries."""
        chosen = self._random.sample(self._eligible, min(ENTRIES, len(self._eligible)))
        self._entries = {
            index: tuple(self._random.randrange(size) for size in self._parameters[index].shape) for index in chosen
        }
        self._found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._passes: Counter[int] = Counter()

    def add(self, index: int, gradient: Tensor) -> None:
        """Take notice of the gradient that a backward pass found for a parameter tensor, before it is in ``.grad``."""
        entry = self._entries.get(index)
        if entry is None:
            return
        value = gradient.detach()[entry].clone()
        self._passes[index] += 1
        if index in self._found:
            total, _, before = self._found[index]
            self._found[index] = total + value, value, before
        else:
            grad = self._parameters[index].grad
            self._found[index] = value, value, torch.zeros_like(value) if grad is None else grad[entry].clone()

    def compare(self, *, divisor: float = 1.0, ranks: Sequence[dist.ProcessGroup] = ()) -> None:
        """Compare with ``.grad``, and start a new step. A collective if there are ``ranks``, which average.

        Args:
            divisor: what ``.grad`` was divided by since, as by a GradScaler.
            ranks: process groups whose ranks average their gradients, one after the other.

        Raises:
            ConfigError: if they differ; says what was probably done and what to do instead.
        """
        indices = sorted(self._entries) if ranks else sorted(self._found)
        entries, passes = self._entries, max(self._passes.values(), default=0)
        if not indices:
            self.forget()
            return
        gradients = [self._parameters[index].grad for index in indices]
        gone = all(gradient is None for gradient in gradients)
        zero = self._parameters[indices[0]].new_zeros(())
        actual = [
            zero if grad is None else grad[entries[index]] for index, grad in zip(indices, gradients, strict=True)
        ]
        rows = [actual, *zip(*(self._found.get(index, (zero, zero, zero)) for index in indices), strict=True)]
        rounding = max(torch.finfo(value.dtype).eps for value in rows[0]) ** 0.5
        self.forget()
        table = torch.stack([torch.stack([value.real.double().to(zero.device) for value in row]) for row in rows]).cpu()
        if ranks:
            world = 1
            for group in ranks:
                world *= dist.get_world_size(group)
            table[1:] = sum_over_ranks([table[1:].to(zero.device)], ranks)[0].cpu() / world
            rounding = max(rounding, OVER_RANKS)
        table[1:] /= divisor
        _require_equal(table, rounding, passes, gone=gone)


def _require_equal(table: Tensor, rounding: float, passes: int, *, gone: bool) -> None:
    actual, expected, latest, before = table
    if not table.isfinite().all() or _near(actual, expected, rounding):
        return
    if gone:
        raise ConfigError("the gradients of the step are gone: measure before optimizer.zero_grad()")
    if passes > 1 and _near(actual, latest, rounding):
        raise ConfigError(
            f"{passes} backward passes since the last measured step, and .grad holds only the latest: call step() once "
            "per optimizer step (to measure only some, pass every=), and throw no backward pass away"
        )
    if before.any() and _near(actual, expected + before, rounding):
        raise ConfigError(".grad was not empty before the first backward pass of the step: call optimizer.zero_grad()")
    factor = float(actual @ expected / (expected @ expected)) if expected.any() else 0.0
    if factor and _near(actual, factor * expected, rounding):
        raise ConfigError(
            f".grad is {factor:.3g} times what the backward passes found: it was clipped, scaled or averaged since; "
            "measure before that (after scaler.unscale_, pass gradients_unscaled=True)"
        )
    raise ConfigError(
        ".grad is not what the backward passes of the step add up to: it was changed since, as by weight decay or "
        "noise added to it, by a hook, or by a wrapper that averages over ranks; measure before that, and give the "
        "noise scale the wrapper"
    )


def _near(left: Tensor, right: Tensor, rounding: float) -> bool:
    """Whether entries agree up to rounding; tiny ones beside others have none to compare."""
    size = torch.maximum(left.abs(), right.abs())
    return bool(((left - right).abs() <= rounding * (size + 1e-3 * size.max())).all())
