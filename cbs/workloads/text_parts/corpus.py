"""A corpus as a workload uses it, and one that needs no file: the documentation that every CPython includes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cbs.errors import DataError
from cbs.workloads.text_parts.shards import TokenShards

TokenUnit = Literal["byte", "token"]
Tokens = np.ndarray | TokenShards

BLOCK = 2**18
"""Number of tokens that are read at once when a corpus is scanned."""

SAMPLED_BLOCKS = 64
"""Longer arrays than this many blocks (16.8 million tokens) are scanned only at this many evenly spaced blocks."""

ASCII_SIZE = 128


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Token ids for training and for validation.

    Attributes:
        training: one-dimensional array of token ids, of any unsigned type; may be memory-mapped, or several files.
        validation: token ids for validation, likewise.
        training_source: origin of the training tokens, for error messages.
        validation_source: origin of the validation tokens, for error messages.
        vocab_size: size of the vocabulary; every id is below it.
        unit: what a token is.
        data_hash: 16 hexadecimal digits, see :func:`scan`.
        fully_checked: whether every id was compared with ``vocab_size``, not only those of sampled blocks.
    """

    training: Tokens
    validation: Tokens
    training_source: str
    validation_source: str
    vocab_size: int
    unit: TokenUnit
    data_hash: str
    fully_checked: bool


def make_corpus(
    training: Tokens,
    validation: Tokens,
    *,
    sources: tuple[str, str],
    vocab_size: int,
    unit: TokenUnit,
) -> Corpus:
    """Check the ids of both parts against the vocabulary and hash them.

    Raises:
        DataError: if an id is not below ``vocab_size``, or both parts are the same tokens.
    """
    parts = [scan(tokens, vocab_size, source) for tokens, source in zip((training, validation), sources, strict=True)]
    if parts[0] == parts[1]:
        raise DataError(
            f"{sources[1]}: the tokens for validation are those for training; leave validation out, which holds some "
            "out, or name other data"
        )
    digest = hashlib.sha256(b"".join(parts))
    return Corpus(
        training=training,
        validation=validation,
        training_source=sources[0],
        validation_source=sources[1],
        vocab_size=vocab_size,
        unit=unit,
        data_hash=digest.hexdigest()[:16],
        fully_checked=max(len(training), len(validation)) <= BLOCK * SAMPLED_BLOCKS,
    )


def scan(tokens: Tokens, vocab_size: int, source: str) -> bytes:
    """Check that token ids are below ``vocab_size``, and return their SHA-256 digest.

    The digest covers the number of tokens and then their ids as little-endian 32-bit integers, so it does not depend on
    how they are stored. For more than ``BLOCK * SAMPLED_BLOCKS`` tokens, digest and check cover only ``SAMPLED_BLOCKS``
    blocks of ``BLOCK`` tokens whose starts are evenly spaced, including the first and last tokens.

    Raises:
        DataError: if an id is too large.
    """
    digest = hashlib.sha256(len(tokens).to_bytes(8, "little"))
    for block in _blocks(tokens):
        check_ids(block, vocab_size, source)
        digest.update(block.astype("<u4").tobytes())
    return digest.digest()


def check_ids(tokens: np.ndarray, vocab_size: int, source: str) -> None:
    """Raise a :class:`~cbs.errors.DataError` if an id is not below ``vocab_size``."""
    largest = int(tokens.max(initial=0))
    if largest >= vocab_size:
        raise DataError(
            f"{source}: token id {largest} is outside the vocabulary of {vocab_size}; set vocab_size to at least "
            f"{largest + 1}, or check dtype and tokenizer"
        )


def belongs_to_validation(key: str) -> bool:
    """Return whether a document is held out: the SHA-256 of ``key`` (UTF-8), as an integer, is a multiple of 10."""
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 10 == 0


@functools.cache
def embedded_corpus() -> Corpus:
    """Return the text of Python's ``help()``, ``pydoc_data.topics``: 420,000 bytes for training, 45,000 for validation.

    Topics are split by name (:func:`belongs_to_validation`), joined by newlines in the order of their names, and
    encoded as ASCII bytes; the few characters beyond ASCII, mostly typographic quotes, become ``?``. Text and hash
    differ between versions of Python.

    Raises:
        DataError: if this Python was packaged without the text.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "pydoc_data.topics: this Python does not include its documentation text; install the full standard "
            "library, or pass data=PATH"
        ) from None
    held_out = {name for name in topics if belongs_to_validation(name)}
    parts = [as_ascii(topics[name] for name in sorted(names)) for names in (topics.keys() - held_out, held_out)]
    return make_corpus(*parts, sources=("pydoc_data.topics",) * 2, vocab_size=ASCII_SIZE, unit="byte")


def as_ascii(documents: Iterator[str]) -> np.ndarray:
    """Return documents as ASCII bytes with newlines between them; characters beyond ASCII become ``?``."""
    return np.frombuffer("\n".join(documents).encode("ascii", "replace"), dtype=np.uint8)


def _blocks(tokens: Tokens) -> Iterator[np.ndarray]:
    if len(tokens) <= BLOCK * SAMPLED_BLOCKS:
        starts = range(0, len(tokens), BLOCK)
    else:
        starts = np.linspace(0, len(tokens) - BLOCK, SAMPLED_BLOCKS).astype(np.int64).tolist()
    for start in starts:
        yield tokens[start : start + BLOCK]
