"""Which entries are updated together: small tensors as one flat vector, large ones in tiles that stay in a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

Sizes = list[Tensor]
"""What broadcasts against a stack: ``[whole]``, or ``[whole, rows, columns]`` where these count."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Lengths that balance passes over memory against calls, in entries.

    Attributes:
        small: tensors of up to this many share a bucket: what they cost is calls, not arithmetic.
        tile: what is worked on at a time; some vectors of this length fit the cache.
        block: directions of a tensor are kept between its two passes up to this many, and computed again beyond.
    """

    small: int
    tile: int
    block: int


CPU = Extent(small=2**16, tile=2**18, block=2**22)
ACCELERATOR = Extent(small=2**22, tile=2**24, block=2**24)


def extent_on(device: torch.device) -> Extent:
    """The extent for a device. Elsewhere than on a CPU calls are dear and caches do not hold what a step touches."""
    return CPU if device.type == "cpu" else ACCELERATOR


@dataclass(frozen=True)
class Stack:
    """Tensors of equal shape, one after the other in a vector.

    A row runs along dimension 1 of a tensor, a column along its dimension 0, for each index of the other dimensions.

    Attributes:
        start: where they start in the vector.
        shape: ``(count, *shape)``.
        by_line: whether their rows and columns count.
        inner: whether their dimensions from the second on were flattened into one.
    """

    start: int
    shape: tuple[int, ...]
    by_line: bool
    inner: bool = False

    def numel(self) -> int:
        """Entries of all its tensors."""
        return math.prod(self.shape)

    def of(self, vectors: Tensor) -> Tensor:
        """The stack as a view of vectors ``[..., entries]``, of shape ``[..., count, *shape]``."""
        return vectors[..., self.start : self.start + self.numel()].unflatten(-1, self.shape)

    def size_shapes(self) -> list[torch.Size]:
        """Shapes of its sizes."""
        count, *shape = self.shape
        whole = torch.Size([count] + [1] * len(shape))
        if not self.by_line:
            return [whole]
        rows, columns, *rest = shape
        return [whole, torch.Size([count, rows, 1, *rest]), torch.Size([count, 1, columns, *rest])]


@dataclass(kw_only=True)
class Tile:
    """Consecutive entries of a bucket, and all that a step needs for them; vectors have shape ``[entries]``.

    Attributes:
        start: the first entry.
        end: one past the last.
        stacks: what they are made of, counted from ``start``.
        origin: indices along dimensions 0 and 1 of the tensor at which a part of one starts.
        states: the optimizer's state, in the order of its names.
        out: the descent direction, later the update.
        spare: room of shape ``[2, entries]``.
        sizes: norms of weights and directions, each of shape ``[2, count, ...]``, for each stack.
        ratios: the ratios, each of shape ``[count, ...]``, for each stack.
        pairs: ``spare`` as stacks.
        factors: ``spare[0]`` as stacks.
        outs: ``out`` as stacks.
        lines: ``out`` as stacks, each tensor flat.
        step: updates including this one, shape ``[]``.
        fused: whether operations of torch that are not public may be used.
        decay: weight decay; 0 where the tensors are exempt.
        alone: whether the tile is part of a single tensor that is updated in place.
        multiplier: what ``out`` is yet to be multiplied by as it is added to the weights; only where ``alone``.
        weight: the weights during a step, not to be written to.
        gradient: their gradients.
    """

    start: int
    end: int
    stacks: list[Stack]
    origin: tuple[int, int] = (0, 0)
    states: list[Tensor] = field(default_factory=list)
    out: Tensor = field(default_factory=lambda: torch.empty(0))
    spare: Tensor = field(default_factory=lambda: torch.empty(2, 0))
    sizes: list[Sizes] = field(default_factory=list)
    ratios: list[Sizes] = field(default_factory=list)
    pairs: list[Tensor] = field(default_factory=list)
    factors: list[Tensor] = field(default_factory=list)
    outs: list[Tensor] = field(default_factory=list)
    lines: list[Tensor] = field(default_factory=list)
    step: Tensor = field(default_factory=lambda: torch.zeros(()))
    fused: bool = True
    decay: float = 0.0
    alone: bool = False
    multiplier: Tensor | None = None
    weight: Tensor = field(default_factory=lambda: torch.empty(0))
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def entries(self) -> int:
        """How many there are."""
        return self.end - self.start

    def cut(self, sizes: Sizes, lead: int) -> Sizes:
        """Of the sizes of a single tensor those that belong to this part of it; views.

        Args:
            sizes: ``[whole]`` or ``[whole, rows, columns]``.
            lead: how many dimensions come before those of the tensor.
        """
        if len(sizes) == 1:
            return sizes
        whole, rows, columns = sizes
        _, height, width, *_ = self.stacks[0].shape
        return [whole, rows.narrow(lead, self.origin[0], height), columns.narrow(lead + 1, self.origin[1], width)]


@dataclass(kw_only=True)
class Bucket:
    """Tensors that are updated as one flat vector, one after the other, those of equal shape side by side.

    Attributes:
        params: the parameters.
        states: the optimizer's state, one vector of all entries for each of its names; its tensors are views of them.
        steps: updates so far, one number for each parameter, all the same.
        scaled: whether the tensors have a ratio; 1 otherwise.
        decayed: whether they have weight decay.
        stacks: the whole bucket.
        tiles: the parts to work on one at a time.
        keeps: whether the directions of all tiles are kept between the passes over a bucket of several.
        layout: the ``DTensorSpec`` of sharded parameters, of which the vectors hold the local shards; else ``None``.
        norms: all norms of weights and directions, shape ``[2, norms]``.
        ratios: all ratios, shape ``[norms]``.
        sizes: ``norms`` for each stack.
        plan: the bucket as compiled code sees it, once that has been used.

    Norms, ratios and views are made once, since a step of a small model is all calls and no arithmetic.
    """

    params: list[Tensor]
    states: list[Tensor]
    steps: Tensor
    scaled: bool
    decayed: bool
    fused: bool
    stacks: list[Stack]
    tiles: list[Tile]
    keeps: bool
    layout: Any
    norms: Tensor = field(init=False)
    ratios: Tensor = field(init=False)
    sizes: list[Sizes] = field(init=False)
    plan: Any = field(default=None, init=False)
    _views: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        shapes = [shape for stack in self.stacks for shape in stack.size_shapes()] if self.scaled else []
        like = self.states[0]
        self.norms = like.new_zeros(2, sum(shape.numel() for shape in shapes))
        self.ratios = like.new_zeros(self.norms.shape[1])
        ends, split = 0, []
        for shape in shapes:
            start, ends = ends, ends + shape.numel()
            split.append((self.norms[:, start:ends].view(2, *shape), self.ratios[start:ends].view(shape)))
        pieces = iter(split)
        both = [[next(pieces) for _ in stack.size_shapes()] for stack in self.stacks] if self.scaled else []
        self.sizes = [[size for size, _ in some] for some in both]
        factors = [[ratio for _, ratio in some] for some in both]
        for tile in self.tiles:
            tile.states = [state[tile.start : tile.end] for state in self.states]
            tile.step, tile.fused = self.steps[0], self.fused
            tile.sizes, tile.ratios = self.sizes, factors
            if self.scaled and len(self.tiles) > 1:
                tile.sizes, tile.ratios = [tile.cut(self.sizes[0], 2)], [tile.cut(factors[0], 1)]

    @property
    def widest(self) -> int:
        """Entries of the largest tile."""
        return max(tile.entries for tile in self.tiles)

    @property
    def room(self) -> int:
        """Entries of directions to hold at a time."""
        return self.tiles[-1].end if self.keeps else self.widest

    @property
    def kind(self) -> tuple[torch.device, torch.dtype]:
        """Where and of which type its vectors are."""
        return self.states[0].device, self.states[0].dtype

    @property
    def looks(self) -> bool:
        """Whether to wait for values pays: it takes about as long as a pass over so many entries."""
        return self.states[0].device.type == "cpu" and self.tiles[-1].end > 2**18

    def work_in(self, directions: Tensor, spare: Tensor) -> None:
        """Use this memory from now on: ``[room or more]`` and ``[2, widest or more]`` entries."""
        self._views, self.plan = {}, None
        for tile in self.tiles:
            start = tile.start if self.keeps else 0
            tile.out, tile.spare = directions[start : start + tile.entries], spare[:, : tile.entries]
            tile.pairs = [stack.of(tile.spare) for stack in tile.stacks]
            tile.factors = [pair[0] for pair in tile.pairs]
            tile.outs = [stack.of(tile.out) for stack in tile.stacks]
            tile.lines = [out.flatten(1) for out in tile.outs]

    def views(self, vector: Tensor, params: list[Tensor]) -> tuple[Tensor, ...]:
        """``vector``, which lives as long as this bucket's memory, in the shapes of ``params``; remembered."""
        if id(vector) not in self._views:
            self._views[id(vector)] = vector, unflatten(vector, params)
        return self._views[id(vector)][1]


def stacks_of(shapes: Sequence[torch.Size], by_line: bool, inner: bool) -> list[Stack]:
    """Runs of equal shapes.

    Args:
        shapes: shapes of tensors that lie one after the other.
        by_line: whether rows and columns of tensors of two or more dimensions count.
        inner: whether dimensions from the second on are one.
    """
    stacks, start = [], 0
    for shape, run in groupby(shapes):
        count = len(list(run))
        flat_inside = inner and len(shape) > 2
        sides = (shape[0], shape[1:].numel()) if flat_inside else tuple(shape) or (1,)
        stacks.append(Stack(start, (count, *sides), by_line and len(shape) > 1, flat_inside))
        start += count * shape.numel()
    return stacks


def tiles_of(stacks: list[Stack], tile: int | None) -> list[Tile]:
    """The tiles of a bucket: several where it is a single tensor of more than ``tile`` entries; ``None``: never.

    They are runs of rows; where a single row is too long, pieces of one. Trailing dimensions are never split.
    """
    total = sum(stack.numel() for stack in stacks)
    if tile is None or total <= tile or len(stacks) > 1 or stacks[0].shape[0] > 1:
        return [Tile(start=0, end=total, stacks=stacks)]
    (stack,) = stacks
    matrix = len(stack.shape) > 2
    rows, columns, *rest = stack.shape[1:] if matrix else (1, *stack.shape[1:])
    depth = math.prod(rest)
    height = max(1, tile // (columns * depth))
    width = columns if columns * depth <= tile else max(1, tile // depth)
    tiles = []
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            sides = (min(height, rows - top), min(width, columns - left), *rest)
            part = Stack(0, (1, *sides) if matrix else (1, sides[1]), stack.by_line, stack.inner)
            start = (top * columns + left) * depth
            tiles.append(Tile(start=start, end=start + part.numel(), stacks=[part], origin=(top, left)))
    return tiles


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries of some tensors as one vector: a view of a single contiguous tensor, a copy of any others."""
    return tensors[0].reshape(-1) if len(tensors) == 1 else flatten(tensors)
