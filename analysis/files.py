"""Files that belong together are written aside and then moved into place, so a failure leaves no half-written file."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from cbs.errors import ResultsError, reason


@contextlib.contextmanager
def in_one_piece(output: Path) -> Iterator[Path]:
    """A draft folder within ``output``; what the block leaves in it is moved up, file by file, once the block is done.

    Raises:
        ResultsError: if the folder cannot be written.
    """
    draft = output / f".tmp-{uuid.uuid4().hex}"
    try:
        draft.mkdir(parents=True)
        yield draft
        for path in sorted(path for path in draft.rglob("*") if path.is_file()):
            place = output / path.relative_to(draft)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
    except OSError as error:
        raise ResultsError(f"cannot write to {output}: {reason(error)}; choose another folder with --output") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            output.rmdir()  # only where nothing is in it
