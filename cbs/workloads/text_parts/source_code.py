"""A corpus of program code that needs no file: the source of Python's standard library."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

from cbs.errors import DataError
from cbs.workloads.text_parts.corpus import ASCII_SIZE, Corpus, as_ascii, belongs_to_validation, make_corpus

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
"""Folders that are not part of the library, or that some distributions of Python leave out."""


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
