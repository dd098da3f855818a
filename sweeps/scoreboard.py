"""Where running trials say how far they are and learn their bound. Imports no torch: it is a process of its own."""

from __future__ import annotations

import time
from typing import Any

from sweeps.cell import Cell


class Scoreboard:
    """Best steps of every cell and the whereabouts of every running trial; one Ray actor per sweep."""

    def __init__(self, best: dict[Cell, float]) -> None:
        self._best = dict(best)
        self._running: dict[str, dict[str, Any]] = {}

    def report(self, cell: Cell, trial_id: str, step: int, value: float) -> float | None:
        """Note where a trial is; returns the best steps of its cell."""
        self._running[trial_id] = {"step": step, "value": value, "time": time.time()}
        return self._best.get(cell)

    def finish(self, cell: Cell, trial_id: str, steps_to_target: float | None) -> None:
        """Note that a trial has ended."""
        self._running.pop(trial_id, None)
        if steps_to_target is not None:
            self._best[cell] = min(steps_to_target, self._best.get(cell, steps_to_target))

    def running(self) -> dict[str, dict[str, Any]]:
        """Step and metric of every running trial, by trial id."""
        return self._running
