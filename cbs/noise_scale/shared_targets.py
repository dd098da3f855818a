"""Detect losses that score examples against the targets of other examples, as mixup and similar methods do.

With ``lam * loss(out, y) + (1 - lam) * loss(out, y[order])`` every term is a function of one output and of constants,
so no derivative shows that two terms share a target, or that the inputs were mixed in the same order. The examples are
not independent all the same: the gradient of a batch has more noise than the terms would have if they were independent.
What shows it is that the loss holds the same targets twice, in another order.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.noise_scale.alike import sampled

SHARED = (
    "the loss holds the targets of a batch twice, in another order: examples that share targets, as with mixup, are "
    "not independent; use the source 'accumulation' and mix each micro-batch by itself"
)

NODES = 256
"""Largest number of operations between a loss and a model's output that are searched, from the loss on."""

TENSORS = 8
"""Largest number of constants of a loss that are compared."""

COLUMNS = 2**12
"""Most numbers of an example that are compared; of larger constants as many are drawn, the same of every example."""

SURE = 1e-3
"""Probability below which a match of two constants is taken as proof that they hold the same targets: that of equally
many copies of every target in both, had they been drawn independently."""


class SharedTargets:
    """Check of the constants in a loss for targets that occur twice.

    Attributes:
        chance: probability of all matches since two constants last were not permutations of one another, had they been
            drawn independently from the same distribution.
    """

    def __init__(self) -> None:
        self.chance = 1.0

    def look(self, loss: Tensor, outputs: Sequence[Tensor], half: Tensor, members: int) -> bool:
        """Return whether examples share targets.

        Args:
            loss: loss of a batch, before its backward pass.
            outputs: tensors with rows of examples from which the loss is computed.
            half: mask of some examples, in whole groups, shape ``[examples]``.
            members: number of examples in a group; these may share targets.
        """
        found = itertools.islice(_constants(loss, outputs, len(half)), TENSORS)
        pairs = itertools.combinations([sampled(rows.detach().reshape(len(half), -1), COLUMNS) for rows in found], 2)
        chances = [_chance(one, other) for one, other in pairs if members == 1 or not _same(one[half], other[half])]
        least = min((chance for chance in chances if chance is not None), default=None)
        self.chance = 1.0 if least is None else self.chance * least
        return self.chance < SURE


def _constants(loss: Tensor, outputs: Sequence[Tensor], examples: int) -> Iterator[Tensor]:
    """Yield the tensors with rows of examples, but without gradient, that operations between a loss and the outputs
    saved.
    """
    ends, nodes = {tensor.grad_fn for tensor in outputs}, deque([loss.grad_fn])
    seen: set[Any] = set()
    while nodes and len(seen) < NODES:
        node = nodes.popleft()
        if node is None or node in seen or node in ends:
            continue
        seen.add(node)
        for name in dir(node):
            value = getattr(node, name) if name.startswith("_saved_") else None
            if isinstance(value, Tensor) and not value.requires_grad and value.dim() and not value.shape[0] % examples:
                yield value
        nodes.extend(after for after, _ in node.next_functions)


def _chance(one: Tensor, other: Tensor) -> float | None:
    """Return the probability that independent draws are permutations of one another, as these rows are.

    ``None`` if they are no permutations, or if equal rows of one correspond to equal rows of the other throughout, as
    with labels and their complement.
    """
    if one.shape != other.shape or one.dtype != other.dtype or torch.equal(one, other) or not _same(one, other):
        return None
    _, places, counts = torch.unique(one, dim=0, return_inverse=True, return_counts=True)
    pairs = torch.unique(torch.cat([places[:, None].to(other.dtype), other], dim=1), dim=0)
    if len(pairs) == len(counts) < len(one):
        return None
    rows, each = len(one), counts.double()
    alike = math.lgamma(rows + 1) - torch.lgamma(each + 1).sum() + (each * (each / rows).log()).sum()
    return math.exp(float(alike))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same rows, in any order."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    sides = [torch.unique(rows, dim=0, return_counts=True) for rows in (one, other)]
    return all(torch.equal(mine, its) for mine, its in zip(*sides, strict=True))
