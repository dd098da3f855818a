"""A file or folder is written beside its place and then moved there, so a failure leaves nothing half-written."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from cbs.errors import ResultsError, reason


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
        raise ResultsError(f"cannot write {what}{path}: {reason(error)}{remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path, what: str = "", remedy: str = "") -> Iterator[Path]:
    """A draft beside ``path``, called ``.tmp-NAME-*``; it takes the place of ``path`` once the block is done.

    Args:
        path: the folder; the one above it is made.
        what: is written, for the message; ``path`` when absent.
        remedy: end of the message.

    Raises:
        ResultsError: if the folder cannot be written; what was there before stays.
    """
    unique = uuid.uuid4().hex
    draft, replaced = (path.with_name(f".tmp-{kind}{path.name}-{unique}") for kind in ("", "replaced-"))
    try:
        draft.mkdir(parents=True)
        yield draft
        if path.exists():
            path.rename(replaced)
        draft.rename(path)
    except OSError as error:
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        raise ResultsError(f"cannot write {what or path}: {reason(error)}{remedy}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
