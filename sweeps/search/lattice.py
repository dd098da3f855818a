"""Learning rates that a search may try: an optimizer's default and what lies a fraction of an octave from it.

Positions are whole numbers, :data:`OCTAVE` to a factor of 2, so that searches that come from different sides try the
same floats, and trials of earlier sweeps on a grid with a factor of 2 count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

OCTAVE = 64
"""Positions to a factor of 2: learning rates differ by 1.1 % at least."""

FARTHEST = 40 * OCTAVE
"""Positions on either side of the default: a factor of 1e12."""

_SAME = 1e-5


class Lattice:
    """Positions and learning rates of one optimizer.

    Args:
        grid: its own learning rates, increasing; their middle is position 0, and a learning rate that falls on one of
            them is that float.
    """

    def __init__(self, grid: Sequence[float]) -> None:
        self._anchor = middle(grid)
        self._own = {round(self.position(lr)): lr for lr in grid}

    def lr(self, position: int) -> float:
        """The learning rate at a position, to six digits."""
        exact = self._anchor * 2.0 ** (position / OCTAVE)
        own = self._own.get(position, exact)
        return own if abs(own / exact - 1.0) < _SAME else float(f"{exact:.6g}")

    def position(self, lr: float) -> float:
        """Where a learning rate lies; no whole number where it is not one of these."""
        position = OCTAVE * math.log2(lr / self._anchor)
        return float(round(position)) if abs(position - round(position)) < OCTAVE * _SAME else position

    def nearest(self, log_lr: float, step: int = OCTAVE) -> int:
        """The multiple of ``step`` next to ``exp(log_lr)``, not farther out than :data:`FARTHEST`."""
        position = round((log_lr - math.log(self._anchor)) / math.log(2.0) * OCTAVE / step) * step
        return max(-FARTHEST, min(FARTHEST, position))


def middle(grid: Sequence[float]) -> float:
    """The middle of a grid; the upper of the two where there are two."""
    return grid[len(grid) // 2]
