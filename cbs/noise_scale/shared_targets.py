"""Detect losses that score examples against the targets of other examples, as mixup and similar methods do.

With ``lam * loss(out, y) + (1 - lam) * loss(out, y[order])`` every term is a function of one output and of constants,
so no derivative shows that two terms share a target, or that the inputs were mixed in the same order. The examples are
not independent all the same: the gradient of a batch has more noise than the terms would have if they were independent.
What shows it is that the loss holds the same targets twice, in another order.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_leaves

from cbs.noise_scale.separation import sampled

SHARED = (
    "the loss holds the targets of a batch twice, in another order: examples that share targets, as with mixup, are "
    "not independent; use the source 'accumulation' and mix each micro-batch by itself"
)

NODES = 256  # Largest number of operations between a loss and a model's output that are searched, from the loss on
TENSORS = 8  # Largest number of constants of a loss that are compared
ROUNDING = 1e-2  # Difference between shares of classes in mixed labels that rounding explains, to bfloat16 at worst

# Most numbers of an example that are compared; from larger constants so many columns are drawn at random
COLUMNS = 2**12

# Probability below which a match of two constants is taken as proof that they hold the same targets: that of equally
# many copies of every target in both, had they been drawn independently.
SURE = 1e-3


def chance_of_match(
    losses: Sequence[Tensor], outputs: Sequence[GradientEdge], half: Tensor, members: int
) -> float | None:
    """Return the probability of the least likely match of targets that losses hold twice, had both been drawn
    independently from the same distribution; ``None`` if they hold none twice.

    ``outputs`` are the tensors with rows of examples from which the losses are computed; targets may be shared within
    groups of ``members``, and ``half`` is a mask of some whole groups, shape ``[examples]``.
    """
    held = (value for _, value in saved(losses, outputs) if not value.requires_grad)
    rows = (value for value in held if value.dim() and not value.shape[0] % len(half))
    found = [sampled(value.reshape(len(half), -1), COLUMNS) for value in itertools.islice(rows, TENSORS)]
    pairs = [*itertools.combinations(found, 2), *filter(None, map(_mixed_labels, found))]
    chances = [_chance(one, other) for one, other in pairs if members == 1 or not _same(one[half], other[half])]
    return min((chance for chance in chances if chance is not None), default=None)


def saved(losses: Sequence[Tensor], outputs: Sequence[GradientEdge]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that operations between outputs and losses saved, each after the name of the operation."""
    for node in operations(losses, outputs):
        values = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        yield from ((node.name(), value) for value in tree_leaves(values) if isinstance(value, Tensor))


def operations(losses: Sequence[Tensor], outputs: Sequence[GradientEdge]) -> Iterator[Any]:
    """Yield the operations between outputs and losses, from the losses on."""
    reached = {edge.node for edge in outputs}
    ends = {node for node in reached if "Boundary" not in node.name()} or reached  # a loss may be from inside the model
    edges, seen = deque((loss.grad_fn, loss.output_nr) for loss in losses), set[Any]()
    while edges and len(seen) < NODES:
        node, number = edge = edges.popleft()
        if node is None or edge in seen or node in ends:
            continue
        seen.add(edge)
        yield node
        edges.extend([node.next_functions[number]] if "Boundary" in node.name() else node.next_functions)


def _mixed_labels(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the classes with the larger and with the smaller share in labels that mix two one-hot vectors in one
    proportion, each of shape ``[examples, 1]``; ``None`` for other tensors.

    Label smoothing, a constant added to all classes, is allowed. Both classes are the same in a row with only one.
    """
    if rows.shape[1] < 2 or not rows.is_floating_point():
        return None
    shares, classes = (rows - rows.min()).float().topk(min(3, rows.shape[1]), dim=1)
    mixed = shares[:, 1] > ROUNDING * shares[:, 0]
    alike = (shares[mixed, :2] - shares[mixed][:1, :2]).abs() <= ROUNDING
    if not mixed.any() or not alike.all() or (shares[:, 2:] > ROUNDING).any() or not (shares[:, 0] > 0).all():
        return None
    return classes[:, :1], torch.where(mixed[:, None], classes[:, 1:2], classes[:, :1])


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
    """Return whether two tensors have the same rows, in any order."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    sides = [torch.unique(rows, dim=0, return_counts=True) for rows in (one, other)]
    return all(torch.equal(mine, its) for mine, its in zip(*sides, strict=True))
