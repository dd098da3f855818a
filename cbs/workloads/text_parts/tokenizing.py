"""From documents to token ids: their bytes, or the ids of any ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from cbs.errors import DataError, needed
from cbs.workloads.text_parts.corpus import TokenUnit

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
