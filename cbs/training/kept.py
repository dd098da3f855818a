"""Checkpoints that a trial writes for others to start from, at given numbers of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cbs.trial.checkpoint import Checkpoint


class KeptCheckpoints:
    """One file for each number of examples, which is its name; each is written once.

    Args:
        folder: folder of the files; created with the first one.
        at: numbers of examples; a checkpoint is written after the first update that reaches each.
    """

    def __init__(self, folder: Path, at: Sequence[int]) -> None:
        self._folder = folder
        self._missing = [examples for examples in sorted(at) if not kept_path(folder, examples).exists()]

    def passed(self, examples: int) -> bool:
        """Whether a trial that continues after this many examples would miss a file that has not been written."""
        return any(at <= examples for at in self._missing)

    def due(self, examples: int) -> bool:
        """Whether a trial that has seen this many examples has a file to write."""
        return bool(self._missing) and self._missing[0] <= examples

    def write(self, state: Callable[[], dict[str, Any]], examples: int, *, first: bool = True) -> None:
        """Write the files that are due.

        Args:
            state: returns the content of a file; called on every rank.
            examples: number of examples seen so far.
            first: whether this is the first rank, the only one that writes.

        Raises:
            ResultsError: if a file cannot be written.
        """
        while self.due(examples):
            content, at = state(), self._missing.pop(0)
            if first:
                self._folder.mkdir(parents=True, exist_ok=True)
                Checkpoint(kept_path(self._folder, at)).save(content)


def kept_path(folder: Path, examples: int) -> Path:
    """Return the path of the checkpoint at this many examples."""
    return folder / f"{examples}.pt"
