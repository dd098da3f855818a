"""Where a long trial picks up after its process has died."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import torch

from cbs.errors import ResultsError

LEAST_SECONDS = 30.0
"""Time between two checkpoints of a trial; short trials never write one."""

SHARE = 0.05
"""Most of a trial's time that may go into writing checkpoints."""


class Checkpoint:
    """The state of a running trial in one file, replaced in one piece.

    Args:
        path: the file; its folder exists.
        seconds: least time between two writes. It grows so that writing takes at most :data:`SHARE` of the time.
    """

    def __init__(self, path: str | os.PathLike[str], *, seconds: float = LEAST_SECONDS) -> None:
        self.path = Path(path)
        self._seconds = seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= self._seconds

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file.

        Raises:
            ResultsError: if it cannot be written; what was there before stays.
        """
        started = time.monotonic()
        partial = self.path.with_name(f".tmp-{self.path.name}-{uuid.uuid4().hex}")
        try:
            torch.save(state, partial)
            os.replace(partial, self.path)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            raise ResultsError(f"cannot write checkpoint {self.path}: {error}") from None
        self._written = time.monotonic()
        self._seconds = max(self._seconds, (self._written - started) / SHARE)

    def load(self) -> dict[str, Any] | None:
        """What was saved last, on the CPU; ``None`` where there is nothing.

        Raises:
            ResultsError: if the file is there and cannot be read.
        """
        if not self.path.exists():
            return None
        try:
            return torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 - torch raises half a dozen kinds for a damaged file
            reason = type(error).__name__
            raise ResultsError(
                f"cannot read checkpoint {self.path} ({reason}); delete it to start the trial again"
            ) from None

    def remove(self) -> None:
        """Delete the file, if it is there."""
        self.path.unlink(missing_ok=True)
