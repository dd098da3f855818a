"""Saved state of a running trial, from which it continues after its process has died."""

import os
import time
import zipfile
from pathlib import Path
from typing import Any

import torch

from cbs.errors import out_of_memory, reason
from cbs.files import atomic_file, set_aside

LEAST_SECONDS = 30.0  # Least time between two checkpoints of a trial; shorter trials never write one

# Largest share of a trial's time that may be spent on writing checkpoints, chosen by hand
SHARE = 0.05


class Checkpoint:
    """The state of a running trial in one file, which is replaced atomically.

    Args:
        path: path of the file; its folder exists.
        seconds: least time between two writes. It is raised so that writing takes at most :data:`SHARE` of the time.

    Attributes:
        notes: messages for the user, one line each.
    """

    def __init__(self, path: str | os.PathLike[str], *, seconds: float = LEAST_SECONDS) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._seconds = seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        """Return whether it is time to write again."""
        return time.monotonic() - self._written >= self._seconds

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file.

        Raises:
            ResultsError: if it cannot be written; the earlier file stays.
        """
        started = time.monotonic()
        with atomic_file(self.path, "checkpoint ") as draft, open(draft, "wb") as file:
            try:
                torch.save(state, file)
            except RuntimeError as error:  # torch raises this for a full disk
                raise OSError(reason(error)) from None
            file.flush()
            os.fsync(file.fileno())
        self._written = time.monotonic()
        self._seconds = max(self._seconds, (self._written - started) / SHARE)

    def load(self) -> dict[str, Any] | None:
        """Return the state saved last, on the CPU; ``None`` where there is none, or none that can be read.

        Only tensors and plain values are read, so no file can execute code.
        """
        if not self.path.exists():
            return None
        try:
            with zipfile.ZipFile(self.path) as parts:  # torch writes checksums but does not check them
                if parts.testzip() is not None:
                    raise ValueError("its checksum is not that of its content")
            return torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:
            if out_of_memory(error):
                raise
            self.refuse(f"{type(error).__name__}: {reason(error)}")
            return None

    def refuse(self, why: str) -> None:
        """Rename a file that cannot be used, so that the trial starts over.

        Raises:
            ResultsError: if it cannot be renamed.
        """
        self.notes.append(f"checkpoint damaged ({why}), kept as {set_aside(self.path).name}; the trial starts over")

    def remove(self) -> None:
        """Delete the file, if it exists."""
        self.path.unlink(missing_ok=True)
