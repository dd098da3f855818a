"""Which entries are updated together: small tensors as one flat vector, large ones in tiles that stay in a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

Sizes = list[Tensor]
"""What broadcasts against a stack: ``[whole]``, or ``[whole, rows, columns]`` where these count."""


class Extent(NamedTuple):
    """Lengths that balance passes over memory against calls, in entries.

    Attributes:
        small: tensors of up to this many share a block: what they cost is calls, not arithmetic.
        tile: what is worked on at a time; some vectors of this length fit the cache.
        block: directions of a tensor are kept between its two passes up to this many, and computed again beyond.
    """

    small: int
    tile: int
    block: int


CPU = Extent(small=2**16, tile=2**19, block=2**22)
ACCELERATOR = Extent(small=2**22, tile=2**24, block=2**24)


def extent_on(device: torch.device) -> Extent:
    """The extent for a device. Elsewhere than on a CPU calls are dear and caches do not hold what a step touches."""
    return CPU if device.type == "cpu" else ACCELERATOR


class Measure(NamedTuple):
    """How the size of a tensor is read.

    Attributes:
        norm: its name in :data:`cbs.optimizers.trust_ratio.norms.NORMS`.
        by_line: whether rows and columns of tensors of two or more dimensions have sizes of their own.
        inner: whether the dimensions from the second on are one; else a row runs along dimension 1 alone.
    """

    norm: str = "l2"
    by_line: bool = False
    inner: bool = False


class Stack(NamedTuple):
    """Tensors of equal shape, one after the other in a vector.

    A row runs along dimension 1 of a tensor, a column along its dimension 0, for each index of the other dimensions.

    Attributes:
        start: where they start in the vector.
        shape: ``(count, *shape)``, with the dimensions of tensors as one where only the whole counts.
        by_line: whether their rows and columns count.
        inner: whether their dimensions from the second on were flattened into one.
    """

    start: int
    shape: tuple[int, ...]
    by_line: bool
    inner: bool = False

    def of(self, vectors: Tensor) -> Tensor:
        """The stack as a view of vectors ``[..., entries]``, of shape ``[..., count, *shape]``."""
        return vectors[..., self.start : self.start + math.prod(self.shape)].unflatten(-1, self.shape)

    def size_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of its sizes."""
        count, *shape = self.shape
        whole = (count, *(1 for _ in shape))
        if not self.by_line:
            return [whole]
        rows, columns, *rest = shape
        return [whole, (count, rows, 1, *rest), (count, 1, columns, *rest)]


def stacks_of(shapes: Sequence[torch.Size], wholes: Sequence[torch.Size], measure: Measure) -> list[Stack]:
    """Runs of equal shapes, of tensors that lie one after the other; pieces of unlike tensors are apart even where they
    are alike here, because norms are merged in the order of stacks."""
    stacks, start = [], 0
    for (shape, _), run in groupby(zip(shapes, wholes, strict=True)):
        count = len(list(run))
        by_line, inner = measure.by_line and len(shape) > 1, measure.inner and len(shape) > 2
        sides = (shape[0], shape[1:].numel()) if inner else tuple(shape)
        stacks.append(Stack(start, (count, *(sides if by_line else (shape.numel(),))), by_line, inner))
        start += count * shape.numel()
    return stacks


@dataclass
class Tile:
    """Entries to work on at a time: all those of a block, or some rows of its only tensor.

    Attributes:
        rows: the first row and their number; ``None`` for all of several tensors.
        out: the descent direction, later the update: a vector of all entries, or rows in the shape of their tensor.
        views: ``out`` tensor by tensor.
        spare: room of shape ``[2, *out.shape]``.
        pairs: ``spare`` as stacks, ``[2, count, ...]``.
        outs: ``out`` as stacks, ``[count, ...]``.
        sizes: norms of weights and directions, each of shape ``[2, count, ...]``, for each stack.
        ratios: the ratios, each of shape ``[count, ...]``, for each stack; empty where they are 1.
        weight: during a step, the weights in the type of ``out`` and in its shape, not to be written to.
        params: the weights themselves, tensor by tensor.
        gradients: their gradients, contiguous and in the type of ``out``.
        states: the optimizer's state, in the order of its names; what has the shape ``[]`` is never cut into rows.
    """

    rows: tuple[int, int] | None
    shape: InitVar[tuple[int, ...]]
    room: InitVar[Tensor]
    spares: InitVar[Tensor]
    stacks: InitVar[list[Stack]]
    sizes: list[Sizes]
    ratios: list[Sizes]
    out: Tensor = field(init=False)
    views: list[Tensor] = field(init=False)
    spare: Tensor = field(init=False)
    pairs: list[Tensor] = field(init=False)
    outs: list[Tensor] = field(init=False)
    weight: Tensor = field(init=False)
    params: list[Tensor] = field(init=False)
    gradients: list[Tensor] = field(init=False)
    states: list[list[Tensor]] = field(init=False)

    def __post_init__(self, shape: tuple[int, ...], room: Tensor, spares: Tensor, stacks: list[Stack]) -> None:
        entries, pair = room[: math.prod(shape)], spares[:, : math.prod(shape)]
        self.out, self.spare = entries.view(shape), pair.view(2, *shape)
        self.views = [self.out]
        self.pairs, self.outs = [stack.of(pair) for stack in stacks], [stack.of(entries) for stack in stacks]

    def load(self, params: list[Tensor], gradients: list[Tensor], states: list[list[Tensor]]) -> None:
        """Take what it needs of the block's tensors."""
        if self.rows is not None:
            every = (params, gradients, *states)
            top, count = self.rows
            params, gradients, *states = (
                [one.narrow(0, top, count)] if one.ndim and len(one) > count else [one] for (one,) in every
            )
        self.params, self.states, dtype = params, states, self.out.dtype
        self.gradients = [
            grad if grad.dtype == dtype and grad.is_contiguous() else grad.to(dtype).contiguous() for grad in gradients
        ]
        self.weight = (params[0] if self.rows else torch.cat([param.reshape(-1) for param in params])).to(dtype)

    def move(self, lr: float | Tensor, multiplier: Tensor | None = None) -> None:
        """Add ``lr * multiplier * out`` to the weights; overwrites ``out``."""
        if isinstance(lr, Tensor):
            self.out.mul_(lr)
            lr = 1.0
        if multiplier is not None:
            if self.rows is not None and self.params[0].dtype == self.out.dtype:
                self.params[0].addcmul_(self.out, multiplier, value=lr)
                return
            self.out.mul_(multiplier)
        torch._foreach_add_(self.params, self.views, alpha=lr)

    def release(self) -> None:
        """Let go of all tensors that are not its own."""
        del self.weight, self.params, self.gradients, self.states

    @property
    def first(self) -> bool:
        """Whether it is the first of its block."""
        return self.rows is None or self.rows[0] == 0


@dataclass
class Block:
    """Parameters that are updated together, those of equal shape side by side, or a large one alone.

    Attributes:
        members: which of the group's parameters.
        shapes: of what this process holds of them.
        wholes: of the parameters themselves.
        kind: device and type of their state.
        scaled: whether the tensors have a ratio; 1 otherwise.
        decayed: whether they have weight decay.
        layout: of sharded parameters, see :mod:`cbs.optimizers.trust_ratio.sharded`; else ``None``.
        measure: how sizes are read.

    Norms, ratios and views are made once, since a step of a small model is all calls and no arithmetic.
    """

    members: list[int]
    shapes: list[torch.Size]
    wholes: list[torch.Size]
    kind: tuple[torch.device, torch.dtype]
    scaled: bool
    decayed: bool
    layout: Any
    measure: Measure
    norms: Tensor = field(init=False)
    ratios: Tensor = field(init=False)
    sizes: list[Sizes] = field(init=False)
    tiles: list[Tile] = field(init=False)

    def __post_init__(self) -> None:
        extent = extent_on(self.kind[0])
        self.stacks = stacks_of(self.shapes, self.wholes, self.measure)
        self.alone = len(self.members) == 1
        self.lengths = [shape.numel() for shape in self.shapes]
        total = sum(self.lengths)
        self.height, self.widest = 0, total
        if self.alone:
            rows, *rest = self.shapes[0] or (1,)
            self.height = max(1, min(rows, extent.tile // max(1, math.prod(rest))))
            self.widest = self.height * math.prod(rest)
        self.keeps = total <= extent.block
        self.room = total if self.keeps else self.widest

    def work_in(self, directions: Tensor, spare: Tensor) -> None:
        """Use this memory, ``[room or more]`` and ``[2, widest or more]`` entries."""
        shapes = [shape for stack in self.stacks for shape in stack.size_shapes()] if self.scaled else []
        lengths = [math.prod(shape) for shape in shapes]
        self.norms, self.ratios = spare.new_zeros(2, sum(lengths)), spare.new_zeros(sum(lengths))
        norms = [part.view(2, *shape) for part, shape in zip(self.norms.split(lengths, 1), shapes, strict=True)]
        ratios = [part.view(shape) for part, shape in zip(self.ratios.split(lengths), shapes, strict=True)]
        pairs = iter(zip(norms, ratios, strict=True))
        both = [[next(pairs) for _ in stack.size_shapes()] for stack in self.stacks] if self.scaled else []
        self.sizes = [[norm for norm, _ in some] for some in both]
        factors = [[ratio for _, ratio in some] for some in both]
        if not self.alone:
            tile = Tile(None, (self.widest,), directions, spare, self.stacks, self.sizes, factors)
            ends = [part.view(shape) for part, shape in zip(tile.out.split(self.lengths), self.shapes, strict=True)]
            tile.views, self.tiles = ends, [tile]
            return
        self.tiles, (stack,) = [], self.stacks
        total, *rest = self.shapes[0] or (1,)
        # One even of nothing, as a process may hold of a sharded parameter, since steps are counted there too.
        for top in range(0, max(1, total), self.height):
            count = min(self.height, total - top)
            sides = (count, *stack.shape[2:]) if stack.by_line else (count * math.prod(rest),)
            part = stack._replace(shape=(1, *sides))
            room = directions[top * math.prod(rest) :] if self.keeps else directions
            parts = [_rows(some, dim, top, count) for some, dim in ((self.sizes, 2), (factors, 1))]
            shape = (count, *rest) if self.shapes[0] else ()
            self.tiles.append(Tile((top, count), shape, room, spare, [part], *parts))


def share_memory(blocks: list[Block]) -> None:
    """Have all blocks of a device and type work in the same memory."""
    for kind in {block.kind for block in blocks}:
        some = [block for block in blocks if block.kind == kind]
        room, widest = max(block.room for block in some), max(block.widest for block in some)
        directions, spare = (torch.empty(shape, device=kind[0], dtype=kind[1]) for shape in ((room,), (2, widest)))
        for block in some:
            block.work_in(directions, spare)


def _rows(every: list[Sizes], dim: int, top: int, count: int) -> list[Sizes]:
    """Of the sizes of a single tensor those that belong to some of its rows, which lie along ``dim``."""
    return [[whole, *(line.narrow(dim, top, count) for line in lines[:1]), *lines[1:]] for whole, *lines in every]
