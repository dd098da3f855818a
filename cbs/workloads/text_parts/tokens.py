"""The tokens of a text: from documents to ids, and windows of consecutive ids.

Ids are the bytes of the documents, or those of any ``tokenizer.json``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from cbs.errors import DataError, needed
from cbs.workloads.streams import RandomIndices
from cbs.workloads.text_parts.corpus import Corpus, Tokens, TokenShards, TokenUnit, check_ids

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Usual names of the token that ends a document; the first one that a tokenizer knows is used."""


class Tokenizer(Protocol):
    """A tokenizer that turns documents into token ids.

    Attributes:
        vocab_size: size of the vocabulary; every id is below it.
        unit: what a token is.
        separator: ids that are put between two documents.
    """

    vocab_size: int
    unit: TokenUnit
    separator: np.ndarray

    def encode(self, documents: Sequence[str]) -> list[np.ndarray]:
        """Return one array of ids per document, of the same dtype for all."""


class ByteTokenizer:
    """UTF-8 bytes, with a newline between documents."""

    vocab_size = 256
    unit: TokenUnit = "byte"
    separator = np.frombuffer(b"\n", dtype=np.uint8)

    def encode(self, documents: Sequence[str]) -> list[np.ndarray]:
        """Return one array of bytes per document."""
        return [np.frombuffer(document.encode(), dtype=np.uint8) for document in documents]


class FileTokenizer:
    """A tokenizer of the ``tokenizers`` package, read from its ``tokenizer.json``.

    No special tokens are added to a document, and truncation and padding that the file specifies are switched off.
    Documents are separated by the end-of-text token (:data:`END_OF_TEXT`), or by a newline's ids where there is none.

    Args:
        path: the ``tokenizer.json``.

    Raises:
        MissingDependencyError: if the ``tokenizers`` package is not installed.
        DataError: if the file is missing or not a tokenizer.
    """

    unit: TokenUnit = "token"

    def __init__(self, path: str | Path) -> None:
        with needed("tokenizers", f"files such as {path}"):
            import tokenizers
        path = Path(path).expanduser()
        if not path.is_file():
            raise DataError(f"{path}: no such tokenizer file; pass the path of a tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the package raises Exception itself for a malformed file
            reason = " ".join(str(error).split())
            raise DataError(f"{path}: not a tokenizer.json of the tokenizers package ({reason})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Ids may have gaps, so the number of entries is not a bound on them.
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)
        known = (self._tokenizer.token_to_id(name) for name in END_OF_TEXT)
        end_of_text = next((token for token in known if token is not None), None)
        self.separator = self.encode(["\n"])[0] if end_of_text is None else np.array([end_of_text], dtype=self._dtype)

    def encode(self, documents: Sequence[str]) -> list[np.ndarray]:
        """Return one array of ids per document."""
        encodings = self._tokenizer.encode_batch_fast(list(documents), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self._dtype) for encoding in encodings]


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


def windows_of(corpus: Corpus, context: int, held_out: int) -> tuple[Windows, Tensor]:
    """Return the windows to train on, and those to validate on: the ids of ``held_out`` at evenly spaced starts.

    Raises:
        DataError: if the training part has no window, or the validation part fewer than ``held_out``.
    """
    unchecked = None if corpus.fully_checked else corpus.vocab_size
    training = Windows(corpus.training, context, corpus.training_source, unchecked)
    validation = Windows(corpus.validation, context, corpus.validation_source, unchecked)
    _require(training, "training", 1)
    _require(validation, "validation", held_out)
    return training, validation.gather(np.linspace(0, len(validation) - 1, held_out).astype(np.int64))


def _require(windows: Windows, part: str, wanted: int) -> None:
    if len(windows) >= wanted:
        return
    advice = "give more data or a smaller context"
    if part == "validation":
        advice = "pass validation=PATH with more text, or lower validation_sequences or context"
    raise DataError(
        f"{windows.source}: {windows.tokens} tokens for {part} hold {len(windows)} sequences of {windows.context} + 1 "
        f"tokens, fewer than the {wanted} needed; {advice}"
    )
