"""Token ids that lie in several files, as one long array of which only what is read is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

OPEN = 64
"""Files that are open at a time; a mapped file holds one of the process's descriptors."""


class TokenShards:
    """Files of ids one after another; windows may begin in one and end in the next, as if they were one file.

    Args:
        openers: each maps one file into memory; called again when many others have been read.
        lengths: ids in each file.
        start: the first id that counts.
        stop: the id after the last one; ``None`` for all.
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
        """A part, of which nothing is read."""
        return TokenShards(self._openers, self._lengths, self._start + start, self._start + stop)

    def __getitem__(self, part: slice) -> np.ndarray:
        """The ids of a part, read."""
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
        """Windows of ``length`` ids, shape ``[starts, length]``."""
        return np.stack([self[start : start + length] for start in starts.tolist()])
