"""Options that the workloads of texts share: the corpus, and the shape of a model by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cbs.errors import ConfigError, UnknownNameError
from cbs.workloads.text_parts.corpus import Corpus, check_ids, embedded_corpus
from cbs.workloads.text_parts.files import load_corpus
from cbs.workloads.text_parts.gpt import GPTShape
from cbs.workloads.text_parts.source_code import source_code_corpus

CORPORA = {"topics": embedded_corpus, "stdlib": source_code_corpus}
"""Corpora that need no file."""


def find_corpus(
    workload: str,
    *,
    data: str | None,
    corpus: str | None = None,
    validation: str | None = None,
    tokenizer: str | None = None,
    text_field: str = "text",
    dtype: str | None = None,
    vocab_size: int | None = None,
) -> Corpus:
    """Return a corpus of the user's own data, or one that needs no file.

    Args:
        workload: name of the workload, for error messages.
        data: file or folder, see :func:`cbs.workloads.text_parts.files.load_corpus` for it and the options
            ``validation``, ``tokenizer``, ``text_field``, ``dtype``.
        corpus: a name of :data:`CORPORA` where no data are given; ``None`` for "topics".
        vocab_size: number of token ids; ``None`` for 128 (without data), 256 (bytes) or the tokenizer's.

    Raises:
        UnknownNameError: if there is no such corpus.
        ConfigError: if an option contradicts another.
        DataError: if the data cannot be read or do not fit the vocabulary.
    """
    if data is not None:
        if corpus is not None:
            raise ConfigError(f"options data and corpus of workload {workload!r} exclude one another; leave one out")
        return load_corpus(
            data, validation=validation, tokenizer=tokenizer, text_field=text_field, dtype=dtype, vocab_size=vocab_size
        )
    for name, option in {"validation": validation, "tokenizer": tokenizer, "dtype": dtype}.items():
        if option is not None:
            raise ConfigError(
                f"option {name} of workload {workload!r} needs data=PATH; the embedded corpora do not use it"
            )
    if corpus is not None and corpus not in CORPORA:
        raise UnknownNameError(f"unknown corpus {corpus!r} of workload {workload!r}: known are {', '.join(CORPORA)}")
    found = CORPORA[corpus or "topics"]()
    if vocab_size is None:
        return found
    for tokens in (found.training, found.validation):
        check_ids(tokens[:], vocab_size, found.training_source)
    return dataclasses.replace(found, vocab_size=vocab_size)


def size_named(workload: str, size: str, sizes: Mapping[str, GPTShape]) -> GPTShape:
    """Return the shape called ``size``.

    Raises:
        UnknownNameError: if there is no such shape.
    """
    if size not in sizes:
        raise UnknownNameError(f"unknown size {size!r} of workload {workload!r}: known sizes are {', '.join(sizes)}")
    return sizes[size]


def resized(
    workload: str,
    size: str,
    named: GPTShape,
    *,
    width: int | None,
    layers: int | None,
    heads: int | None,
    context: int | None,
) -> GPTShape:
    """Return the shape of a size with the given changes; the head size is kept unless ``heads`` is given.

    Raises:
        ConfigError: if the heads do not divide the width.
    """
    width = width or named.width
    if heads is None:
        heads, rest = divmod(width, named.head_size)
        if rest:
            raise ConfigError(
                f"width {width} of workload {workload!r} is not a multiple of {named.head_size}, the head size of "
                f"{size!r}: choose one that is, or give heads"
            )
    elif width % heads:
        raise ConfigError(
            f"width {width} of workload {workload!r} is not divisible by heads={heads}; change one of them"
        )
    layers, context = layers or named.layers, context or named.context
    return dataclasses.replace(named, width=width, heads=heads, layers=layers, context=context)
