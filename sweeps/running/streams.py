"""Redirect what Ray and other C code in this process write to the standard streams."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def output_to_error() -> Iterator[None]:
    """Send what C code writes to standard output to standard error, and discard what Python prints to standard output,
    which are messages of Ray about its own processes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def c_without_errors() -> Iterator[None]:
    """Discard what C code writes to standard error, such as Ray's message that it found a log level; what Python prints
    there is still shown."""
    kept = os.dup(2)
    try:
        with contextlib.ExitStack() as stack:
            if sys.stderr is sys.__stderr__ and sys.stderr is not None:
                sys.stderr.flush()
                ours = stack.enter_context(open(kept, "w", buffering=1, closefd=False, errors=sys.stderr.errors))
                stack.enter_context(contextlib.redirect_stderr(ours))
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
