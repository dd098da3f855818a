"""The learning rates that a search may try: an optimizer's default times fractional powers of 2.

Learning rates have integer positions, :data:`OCTAVE` per factor of 2. Searches that arrive from different sides
therefore try exactly the same floats, and trials of earlier sweeps on a grid with a factor of 2 can be reused.
"""

import math
from collections.abc import Sequence

OCTAVE = 64
"""Number of positions per factor of 2: neighbouring learning rates differ by 1.1 %."""

FARTHEST = 40 * OCTAVE
"""Largest distance from the default, in positions: a factor of 1e12 on either side."""

_SAME = 1e-5  # Relative difference below which two learning rates are one: they are written with six digits


class Lattice:
    """Map between positions and learning rates of one optimizer.

    Args:
        grid: the optimizer's own learning rates in increasing order. Their middle is position 0, and a position that
            falls on one of them returns exactly that float.
    """

    def __init__(self, grid: Sequence[float]) -> None:
        self._anchor = middle(grid)
        self._own = {round(self.position(lr)): lr for lr in grid}

    def lr(self, position: int) -> float:
        """Return the learning rate at a position, rounded to six digits."""
        exact = self._anchor * 2.0 ** (position / OCTAVE)
        own = self._own.get(position, exact)
        return own if abs(own / exact - 1.0) < _SAME else float(f"{exact:.6g}")

    def position(self, lr: float) -> float:
        """Return the position of a learning rate; not an integer if the learning rate is not on the lattice."""
        position = OCTAVE * math.log2(lr / self._anchor)
        return float(round(position)) if abs(position - round(position)) < OCTAVE * _SAME else position

    def nearest(self, log_lr: float, step: int = OCTAVE) -> int:
        """Return the multiple of ``step`` nearest to ``exp(log_lr)``, at most :data:`FARTHEST` from the default."""
        position = round((log_lr - math.log(self._anchor)) / math.log(2.0) * OCTAVE / step) * step
        return max(-FARTHEST, min(FARTHEST, position))


def middle(grid: Sequence[float]) -> float:
    """Return the middle of a grid; the upper of the two middle values if their number is even."""
    return grid[len(grid) // 2]
