"""A corpus as a workload uses it, in one array or in shards, and two that need no file: the documentation that every
CPython includes, and the source of its standard library.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from cbs.errors import DataError

# Largest number of files that are open at a time: each uses one of the process's file descriptors, usually 1024
OPEN = 64

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
"""Folders that are not part of the library, or that some distributions of Python leave out."""


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
        self._shard = lru_cache(maxsize=OPEN)(lambda index: openers[index]())

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
        index = int(np.searchsorted(self._ends, at, side="right"))
        while at < stop:
            begin = int(self._ends[index]) - self._lengths[index]
            pieces.append(self._shard(index)[at - begin : stop - begin])
            at = int(self._ends[index])
            index += 1
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=self._shard(0).dtype)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return windows of ``length`` ids, shape ``[starts, length]``."""
        return np.stack([self[start : start + length] for start in starts.tolist()])


TokenUnit = Literal["byte", "token"]
Tokens = np.ndarray | TokenShards
# Number of tokens that are read at once when a corpus is scanned
BLOCK = 2**18

# Longer arrays than this many blocks (16.8 million tokens) are scanned only at this many evenly spaced blocks
SAMPLED_BLOCKS = 64

ASCII_SIZE = 128  # Bytes of ASCII are token ids as they are


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

    @property
    def first_target(self) -> float:
        """The target unless another is given: for bytes a loss that takes more than the byte before them, see
        :class:`cbs.workloads.text.TextWorkload`; for tokens 0.6 ln V, early in training."""
        return 2.4 if self.unit == "byte" else round(0.6 * math.log(self.vocab_size), 2)


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


@functools.cache
def source_code_corpus() -> Corpus:
    """Return the modules of the standard library: about 11 million bytes for training and 1 million for validation.

    Modules are split by their path (:func:`~cbs.workloads.text_parts.corpus.belongs_to_validation`), joined by
    newlines in the order of their paths, and encoded as ASCII bytes; characters beyond ASCII become ``?``. The text
    and its hash differ between versions of Python.

    Raises:
        DataError: if this Python does not include the source of its library.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    sides: tuple[list[str], list[str]] = ([], [])
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if not LEFT_OUT & set(name.parts):
            sides[belongs_to_validation(name.as_posix())].append(path.read_text("utf-8", errors="replace"))
    if not all(sides):
        raise DataError(f"{folder}: this Python does not include the source of its library; pass data=PATH")
    training, validation = (as_ascii(iter(side)) for side in sides)
    return make_corpus(training, validation, sources=(str(folder),) * 2, vocab_size=ASCII_SIZE, unit="byte")
