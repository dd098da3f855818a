"""The trials behind a curve: one table of learning rates by seeds per batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from cbs.lr_choice import best_lr_many


@dataclass(frozen=True)
class Trials:
    """Every trial at one batch size, shape ``[learning rates, seeds]`` each.

    Attributes:
        steps: steps to target; NaN where it was not reached.
        bound: steps run without reaching it; NaN where that means nothing.
        ran: whether the trial was run.
    """

    steps: Array
    bound: Array
    ran: np.ndarray

    @classmethod
    def of(cls, steps: Array, bound: Array | None = None, ran: np.ndarray | None = None) -> Trials:
        """A table in which every trial was run and none is bounded, unless said otherwise."""
        steps = np.asarray(steps, dtype=float)
        return cls(
            steps,
            np.full(steps.shape, np.nan) if bound is None else np.asarray(bound, dtype=float),
            np.ones(steps.shape, dtype=bool) if ran is None else np.asarray(ran, dtype=bool),
        )

    def without(self, seed: int) -> Trials:
        """The table as if a seed (a column) had never been run."""
        kept = np.arange(self.steps.shape[1]) != seed
        return Trials(self.steps[:, kept], self.bound[:, kept], self.ran[:, kept])


def winners(tables: Sequence[Trials]) -> list[int | None]:
    """Row of the best learning rate of every table, see :func:`cbs.lr_choice.best_lr`."""
    # tables of unlike shapes are filled up with what was never run
    shape = np.max([table.steps.shape for table in tables], axis=0)
    steps, ran = np.full((len(tables), *shape), np.nan), np.zeros((len(tables), *shape), dtype=bool)
    for place, table in enumerate(tables):
        rows, columns = table.steps.shape
        steps[place, :rows, :columns] = table.steps
        ran[place, :rows, :columns] = table.ran
    return [None if row < 0 else int(row) for row in best_lr_many(steps, ran)]
