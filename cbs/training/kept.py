"""Checkpoints that a trial leaves behind for others to start from, at given numbers of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cbs.trial.checkpoint import Checkpoint


class KeptCheckpoints:
    """One file for each number of examples, which is its name; written once and never again.

    Args:
        folder: of the files; made with the first.
        at: examples; a checkpoint is written after the first update that reaches them.
    """

    def __init__(self, folder: Path, at: Sequence[int]) -> None:
        self._folder = folder
        self._missing = [examples for examples in sorted(at) if not kept_path(folder, examples).exists()]

    def passed(self, examples: int) -> bool:
        """Whether a trial that goes on after so many examples would never write a file that is missing."""
        return any(at <= examples for at in self._missing)

    def due(self, examples: int) -> bool:
        """Whether a trial that has seen so many examples has a file to write."""
        return bool(self._missing) and self._missing[0] <= examples

    def write(self, state: Callable[[], dict[str, Any]], examples: int, *, first: bool = True) -> None:
        """Write the files that are due.

        Args:
            state: gives what goes into them; asked for on every rank.
            examples: seen so far.
            first: whether this is the first rank, which writes.

        Raises:
            ResultsError: if that cannot be done.
        """
        while self.due(examples):
            content, at = state(), self._missing.pop(0)
            if first:
                self._folder.mkdir(parents=True, exist_ok=True)
                Checkpoint(kept_path(self._folder, at)).save(content)


def kept_path(folder: Path, examples: int) -> Path:
    """The file of a checkpoint at so many examples."""
    return folder / f"{examples}.pt"
