"""Token ids in several files as one long array, of which only the parts that are read are loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

OPEN = 64
"""Largest number of files that are open at a time; a mapped file uses one of the process's file descriptors."""


class TokenShards:
    """Consecutive files of ids, which act as one file: a window may begin in one and end in the next.

    Args:
        openers: functions that map one file each into memory; called again when many others have been read.
        lengths: number of ids in each file.
        start: position of the first id.
        stop: position after the last id; ``None`` for the end.
    """

    def __init__(
        self,
        openers: Sequence[Callable[[], np.ndarray]],
        lengths: Sequence[int],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self._openers = openers
        self._lengths = lengths
        self._ends = np.cumsum(lengths)
        self._start = start
        self._stop = int(self._ends[-1]) if stop is None else stop
        self._shard = lru_cache(maxsize=OPEN)(lambda place: openers[place]())

    def __len__(self) -> int:
        return self._stop - self._start

    def between(self, start: int, stop: int) -> TokenShards:
        """Return a part, without reading it."""
        return TokenShards(self._openers, self._lengths, self._start + start, self._start + stop)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Read and return the ids of a part."""
        first, last, _ = part.indices(len(self))
        at, stop = self._start + first, self._start + max(first, last)
        pieces = []
        place = int(np.searchsorted(self._ends, at, side="right"))
        while at < stop:
            begin = int(self._ends[place]) - self._lengths[place]
            pieces.append(self._shard(place)[at - begin : stop - begin])
            at = int(self._ends[place])
            place += 1
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=self._shard(0).dtype)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return windows of ``length`` ids, shape ``[starts, length]``."""
        return np.stack([self[start : start + length] for start in starts.tolist()])
