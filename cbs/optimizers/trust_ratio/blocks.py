"""Blocks of parameters that are updated together: small ones as one flat vector, a large one alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

Sizes = list[Tensor]
"""Tensors that broadcast against a stack: ``[whole]``, or ``[whole, rows, columns]`` where rows and columns count."""

# Norms along one dimension, which is kept: `(entries, dim, out)`
NORMS: dict[str, Callable[[Tensor, int, Tensor], Tensor]] = {
    "max": lambda entries, dim, out: torch.amax(entries, dim, keepdim=True, out=out),  # of absolute values
    "l2": lambda entries, dim, out: torch.linalg.vector_norm(entries, 2, dim, True, out=out),
}


class Extent(NamedTuple):
    """Sizes in entries that balance passes over memory against the number of calls.

    Attributes:
        small: tensors of up to this many entries share a block, because their cost is calls, not arithmetic.
        shared: largest number of entries in a shared block.
        tile: entries of a large tensor that are measured or moved at a time, because they stay in the cache meanwhile.
    """

    small: int
    shared: int
    tile: int


# A tile of 1 MiB in float32 stays in the cache of a core; an accelerator reads its memory once, so tensors stay whole
CPU = Extent(small=2**16, shared=2**18, tile=2**18)
ACCELERATOR = Extent(small=2**22, shared=2**24, tile=2**62)


def extent_on(device: torch.device) -> Extent:
    """Return the extent for a device. Other than on a CPU, calls are expensive and caches do not hold the tensors of a
    step.
    """
    return CPU if device.type == "cpu" else ACCELERATOR


class NormSpec(NamedTuple):
    """How the size of a tensor is measured.

    Attributes:
        norm: name in :data:`cbs.optimizers.trust_ratio.blocks.NORMS`.
        by_line: whether rows and columns of tensors with two or more dimensions have sizes of their own.
        inner: whether the dimensions from the second on are flattened; else a row runs along dimension 1 only.
    """

    norm: str = "l2"
    by_line: bool = False
    inner: bool = False


class Stack(NamedTuple):
    """Tensors of equal shape, stored consecutively in a vector.

    A row runs along dimension 1 of a tensor, a column along its dimension 0, for each index of the other dimensions.

    Attributes:
        start: position of the first entry in the vector.
        shape: ``(count, *shape)``, with flattened tensors where only the whole counts.
        by_line: whether their rows and columns have sizes.
        inner: whether their dimensions from the second on were flattened into one.
    """

    start: int
    shape: tuple[int, ...]
    by_line: bool
    inner: bool = False

    def of(self, vectors: Tensor) -> Tensor:
        """Return the stack as a view of vectors ``[..., entries]``, of shape ``[..., count, *shape]``."""
        return vectors[..., self.start : self.start + math.prod(self.shape)].unflatten(-1, self.shape)

    def size_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of its sizes."""
        count, *shape = self.shape
        whole = (count, *(1 for _ in shape))
        if not self.by_line:
            return [whole]
        rows, columns, *rest = shape
        return [whole, (count, rows, 1, *rest), (count, 1, columns, *rest)]


def stacks_of(shapes: Sequence[torch.Size], wholes: Sequence[torch.Size], measure: NormSpec) -> list[Stack]:
    """Return stacks of consecutive tensors with equal shapes.

    Shards of tensors with different full shapes are in different stacks even if the shards have equal shapes, because
    norms are merged over processes in the order of the stacks.
    """
    stacks, start = [], 0
    for (shape, _), run in groupby(zip(shapes, wholes, strict=True)):
        count = len(list(run))
        by_line, inner = measure.by_line and len(shape) > 1, measure.inner and len(shape) > 2
        sides = (shape[0], shape[1:].numel()) if inner else tuple(shape)
        stacks.append(Stack(start, (count, *(sides if by_line else (shape.numel(),))), by_line, inner))
        start += count * shape.numel()
    return stacks


ALL = slice(None)


class Tile(NamedTuple):
    """A block, or some slices of a large tensor along dimension 0, with what belongs to them.

    Attributes:
        part: the slices.
        out: the descent direction, later the update.
        views: views of ``out`` for each tensor.
        spare: work memory of the shape of ``out``; of the two of a shared block, the first.
        spares: ``spare`` as stacks, ``[count, ...]``.
        factors: ratios for each stack, of shapes that broadcast against ``spares``; empty without ratios.
    """

    part: slice
    out: Tensor
    views: list[Tensor]
    spare: Tensor
    spares: list[Tensor]
    factors: list[Sizes]


@dataclass
class ParameterBlock:
    """Parameters that are updated together, those of equal shape side by side, or a large one alone.

    Norms, ratios and views are created once, because the cost of a step of a small model is calls, not arithmetic.

    Attributes:
        members: positions of the parameters in their group.
        shapes: shapes of the parts that this process holds.
        wholes: full shapes of the parameters.
        kind: device and dtype of their state.
        scaled: whether the tensors have a ratio; otherwise it is 1.
        decayed: whether they have weight decay.
        layout: layout of sharded parameters, see :mod:`cbs.optimizers.trust_ratio.core`; else ``None``.
        measure: how sizes are measured.
        norms: all norms of weights and directions, shape ``[2, norms]``.
        ratios: all ratios, shape ``[norms]``.
        sizes: views of ``norms`` for each stack, each of shape ``[2, count, ...]``; empty without ratios.
        factors: views of ``ratios`` for each stack, each of shape ``[count, ...]``; empty without ratios.
        out: the descent direction, later the update: a vector of all entries, or the only tensor in its shape.
        views: views of ``out`` for each tensor.
        spare: work memory: ``[2, entries]``, or ``[room]`` for a tensor that is alone.
        outs: ``out`` as stacks, ``[count, ...]``.
        tiles: the block in parts that stay in the cache: several for a large tensor alone on a CPU, else one.
        weight: during a step, the weights in the dtype and shape of ``out``; read-only.
        params: the weights themselves, one tensor per parameter.
        gradients: their gradients, contiguous and in the dtype of ``out``.
        states: the optimizer's state, in the order of its names.
    """

    members: list[int]
    shapes: list[torch.Size]
    wholes: list[torch.Size]
    kind: tuple[torch.device, torch.dtype]
    scaled: bool
    decayed: bool
    layout: Any
    measure: NormSpec
    norms: Tensor = field(init=False)
    ratios: Tensor = field(init=False)
    sizes: list[Sizes] = field(init=False)
    factors: list[Sizes] = field(init=False)
    out: Tensor = field(init=False)
    views: list[Tensor] = field(init=False)
    spare: Tensor = field(init=False)
    outs: list[Tensor] = field(init=False)
    tiles: list[Tile] = field(init=False)
    weight: Tensor = field(init=False)
    params: list[Tensor] = field(init=False)
    gradients: list[Tensor] = field(init=False)
    states: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.stacks = stacks_of(self.shapes, self.wholes, self.measure)
        self.alone = len(self.members) == 1
        self.lengths = [shape.numel() for shape in self.shapes]
        self.entries = sum(self.lengths)
        # A large tensor is worked on in slices along dimension 0. A compiler joins passes over memory by itself.
        self.slices = max(1, self.shapes[0][0]) if self.alone and self.shapes[0] else 1
        tile = self.entries if torch.compiler.is_compiling() else extent_on(self.kind[0]).tile
        self.at_once = min(self.slices, max(1, tile * self.slices // max(1, self.entries)))
        self.room = self.entries // self.slices * self.at_once if self.alone else 2 * self.entries

    def work_in(self, directions: Tensor, spare: Tensor) -> None:
        """Use this memory: vectors of at least ``entries`` and of at least ``room`` entries."""
        shapes = [shape for stack in self.stacks for shape in stack.size_shapes()] if self.scaled else []
        lengths = [math.prod(shape) for shape in shapes]
        self.norms, self.ratios = spare.new_zeros(2, sum(lengths)), spare.new_zeros(sum(lengths))
        norms = [part.view(2, *shape) for part, shape in zip(self.norms.split(lengths, 1), shapes, strict=True)]
        ratios = [part.view(shape) for part, shape in zip(self.ratios.split(lengths), shapes, strict=True)]
        pairs = iter(zip(norms, ratios, strict=True))
        both = [[next(pairs) for _ in stack.size_shapes()] for stack in self.stacks] if self.scaled else []
        self.sizes = [[norm for norm, _ in some] for some in both]
        self.factors = [[ratio for _, ratio in some] for some in both]
        out = directions[: self.entries]
        self.out = out.view(self.shapes[0]) if self.alone else out
        self.views = [part.view(one) for part, one in zip(out.split(self.lengths), self.shapes, strict=True)]
        self.outs = [stack.of(out) for stack in self.stacks]
        if self.alone:
            self.spare = spare[: self.room]
            self.tiles = [self._tile(at) for at in range(0, self.slices, self.at_once)]
        else:
            self.spare = spare[: self.room].view(2, self.entries)
            first, stacks = self.spare[0], [stack.of(self.spare[0]) for stack in self.stacks]
            self.tiles = [Tile(ALL, out, self.views, first, stacks, self.factors)]

    def _tile(self, start: int) -> Tile:
        several = self.at_once < self.slices
        part = slice(start, start + self.at_once) if several else ALL
        (stack,), out = self.stacks, self.out[part] if several else self.out
        spare = self.spare[: out.numel()]
        shape = (1, out.shape[0], *stack.shape[2:]) if stack.by_line else (1, out.numel())
        factors = [[whole, *(line[:, part] for line in lines[:1]), *lines[1:]] for whole, *lines in self.factors]
        return Tile(part, out, [out], spare.view(out.shape), [spare.view(shape)], factors)

    def load(self, params: list[Tensor], gradients: list[Tensor], states: list[list[Tensor]]) -> None:
        """Set the tensors of a step."""
        self.params, self.states, dtype = params, states, self.out.dtype
        self.gradients = [
            grad if grad.dtype == dtype and grad.is_contiguous() else grad.to(dtype).contiguous() for grad in gradients
        ]
        self.weight = (params[0] if self.alone else torch.cat([param.reshape(-1) for param in params])).to(dtype)

    def move(self, lr: float | Tensor, multiplier: Tensor | None = None, tile: Tile | None = None) -> None:
        """Add ``lr * multiplier * out`` of a tile, or of the block, to the weights; overwrites ``out``."""
        out, views = (self.out, self.views) if tile is None else (tile.out, tile.views)
        params = [param[tile.part] for param in self.params] if tile is not None and tile.part != ALL else self.params
        if isinstance(lr, Tensor):
            out.mul_(lr)
            lr = 1.0
        if multiplier is not None:
            if self.alone and params[0].dtype == out.dtype:
                params[0].addcmul_(out, multiplier, value=lr)
                return
            out.mul_(multiplier)
        torch._foreach_add_(params, views, alpha=lr)

    def release(self) -> None:
        """Drop references to all tensors that are not the block's own."""
        del self.weight, self.params, self.gradients, self.states


def share_memory(blocks: list[ParameterBlock]) -> None:
    """Let all blocks of a device and dtype work in the same memory."""
    for kind in {block.kind for block in blocks}:
        some = [block for block in blocks if block.kind == kind]
        lengths = max(block.entries for block in some), max(block.room for block in some)
        directions, spare = (torch.empty(length, device=kind[0], dtype=kind[1]) for length in lengths)
        for block in some:
            block.work_in(directions, spare)


def measure(block: ParameterBlock) -> None:
    """Compute norms of a block's weights and of ``block.out`` into ``block.sizes``; overwrites ``block.spare``."""
    name = block.measure.norm
    block.norms.zero_()
    if name == "max" and not block.alone:
        # On a CPU amax of absolute values is many times faster than vector_norm(inf) or aminmax.
        torch.abs(block.weight, out=block.spare[0])
        torch.abs(block.out, out=block.spare[1])
        for stack, sizes in zip(block.stacks, block.sizes, strict=True):
            _measure(stack.of(block.spare), 1, sizes, name)
        return
    for index, entries in enumerate((block.weight, block.out)):
        if name == "max":
            for tile in block.tiles:
                torch.abs(entries[tile.part] if tile.part != ALL else entries, out=tile.spare)
                _measure_tile(tile, [size[index] for size in block.sizes[0]])
            continue
        parts = entries.reshape(-1).split([out.numel() for out in block.outs])
        for part, out, sizes in zip(parts, block.outs, block.sizes, strict=True):
            _measure(part.view_as(out), 0, [size[index] for size in sizes], name)


def _measure_tile(tile: Tile, sizes: Sizes) -> None:
    """Raise ``sizes``, 0 before the first tile, to the largest entries of ``tile.spare``."""
    whole, *lines = sizes
    if tile.part == ALL:
        _measure(tile.spares[0], 0, sizes, "max")
        return
    # A row lies in one tile, the rest in all of them.
    rows, columns = [line[:, tile.part] for line in lines[:1]], lines[1:]
    own = [torch.empty_like(whole), *rows, *(torch.empty_like(line) for line in columns)]
    _measure(tile.spares[0], 0, own, "max")
    for size, one in zip([whole, *columns], [own[0], *own[2:]], strict=True):
        torch.maximum(size, one, out=size)


def _measure(entries: Tensor, lead: int, sizes: Sizes, name: str) -> None:
    """Compute norms of ``[..., count, rows, columns, ...]`` with ``lead`` dimensions before the count."""
    whole, *lines = sizes
    if entries.numel() == 0:
        return
    if lines:
        rows, columns = lines
        NORMS[name](entries, lead + 2, rows)
        NORMS[name](entries, lead + 1, columns)
        entries = rows
    NORMS[name](entries.flatten(lead + 1), lead + 1, whole.flatten(lead + 1))
