"""Memory for intermediate results, kept from one product to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SCRATCH_BYTES = 2**24
"""Memory that is kept for intermediate results."""


class Scratch:
    """Memory of a processor for results that are read once.

    Memory that is allocated for every product is often fresh from the system, and the first write to a page takes much
    longer than another one to what is in the cache.
    """

    def __init__(self) -> None:
        self._memory: dict[torch.dtype, Tensor] = {}

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor | None:
        """A tensor of some shape and of the type of another one; ``None`` where fresh memory is as good, or more is
        asked for than is kept."""
        entries = math.prod(shape)
        if like.device.type != "cpu" or entries * like.itemsize > SCRATCH_BYTES:
            return None
        memory = self._memory.get(like.dtype)
        if memory is None or len(memory) < entries:
            memory = self._memory[like.dtype] = torch.empty(entries, dtype=like.dtype)
        return memory[:entries].view(shape)
