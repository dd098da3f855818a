"""Windows of consecutive tokens of a text, and a stream of random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from cbs.errors import DataError
from cbs.workloads.streams import RandomIndices
from cbs.workloads.text_parts.corpus import Tokens, check_ids
from cbs.workloads.text_parts.shards import TokenShards


class Windows:
    """All windows of ``context + 1`` consecutive tokens of a text, without a copy of it.

    Args:
        tokens: one-dimensional array of ids, in memory, memory-mapped, or in several files.
        context: number of tokens that a window predicts.
        source: origin of the tokens, for error messages.
        vocab_size: every id that is read has to be below it; ``None`` if that was checked already.
    """

    def __init__(self, tokens: Tokens, context: int, source: str, vocab_size: int | None = None) -> None:
        self.tokens = len(tokens)
        self.context = context
        self.source = source
        self._vocab_size = vocab_size
        self._read: Callable[[np.ndarray], np.ndarray]
        if isinstance(tokens, TokenShards):
            self._read = partial(tokens.windows, length=context + 1)
        else:
            self._read = sliding_window_view(tokens, min(context + 1, len(tokens))).__getitem__

    def __len__(self) -> int:
        return max(0, self.tokens - self.context)

    def gather(self, starts: np.ndarray) -> Tensor:
        """Return the windows at ``starts``, as integers of shape ``[starts, context + 1]``.

        Raises:
            DataError: if an id is outside the vocabulary.
        """
        rows = self._read(starts)
        if self._vocab_size is not None:
            check_ids(rows, self._vocab_size, self.source)
        return torch.from_numpy(rows.astype(np.int64))


class WindowStream:
    """Stream of windows at random starts, with replacement; the sequence depends on the generator only.

    Args:
        windows: windows to draw from.
        generator: a CPU generator.
    """

    def __init__(self, windows: Windows, generator: torch.Generator) -> None:
        self._windows = windows
        self._starts = RandomIndices(len(windows), generator)

    def next(self, examples: int) -> Tensor:
        """Return the next ``examples`` windows, integers of shape ``[examples, context + 1]``."""
        return self._windows.gather(self._starts.next(examples).numpy())

    def skip(self, examples: int) -> None:
        """Continue after the next ``examples`` windows, which are not read."""
        self._starts.skip(examples)


def require_windows(windows: Windows, part: str, wanted: int) -> None:
    """Raise a :class:`~cbs.errors.DataError` if there are fewer windows than wanted."""
    if len(windows) >= wanted:
        return
    advice = "give more data or a smaller context"
    if part == "validation":
        advice = "pass validation=PATH with more text, or lower validation_sequences or context"
    raise DataError(
        f"{windows.source}: {windows.tokens} tokens for {part} hold {len(windows)} sequences of {windows.context} + 1 "
        f"tokens, fewer than the {wanted} needed; {advice}"
    )
