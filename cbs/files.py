"""A file is written beside its place and then moved there, so a failure leaves no half-written file."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from cbs.errors import ResultsError


@contextlib.contextmanager
def whole_file(path: Path, what: str = "", remedy: str = "") -> Iterator[Path]:
    """A draft beside ``path``, with the same suffix; it takes the place of ``path`` once the block is done.

    Args:
        path: the file; its folder is made.
        what: it is, for the message: ``"the report to "``.
        remedy: end of the message.

    Raises:
        ResultsError: if the file cannot be written; what was there before stays.
    """
    draft = path.with_name(f".tmp-{uuid.uuid4().hex}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise ResultsError(f"cannot write {what}{path}: {error.strerror or error}{remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
