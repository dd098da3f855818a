"""One row per optimizer update, gathered without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


class StepColumns:
    """The columns of ``steps.parquet``: device scalars since the last flush, numbers before it.

    Args:
        columns: names of the columns after ``train_loss``; those of diagnostics follow.
        schedule: names of the columns that the batch schedule fills in, numbers all along.
    """

    def __init__(self, columns: Sequence[str], schedule: Sequence[str] = ()) -> None:
        self.names = ("train_loss", *columns)
        self._schedule = tuple(schedule)
        self._planned: list[Sequence[float]] = []
        self._rows: list[np.ndarray] = []
        self._pending: list[Tensor] = []

    def append(
        self,
        batch_size: int,
        values: Sequence[Tensor],
        diagnostics: Mapping[str, Tensor] | None = None,
        schedule: Sequence[float] = (),
    ) -> None:
        """Add the row of one step: a zero-dimensional tensor per column, NaN in the columns that are not given.

        Args:
            batch_size: examples of the step.
            values: of ``train_loss`` and ``columns``.
            diagnostics: of further columns, by name. Those of the first step are there ever after.
            schedule: of the columns of the batch schedule.
        """
        found = diagnostics or {}
        if not self._rows and not self._pending:
            self.names = (*self.names, *found)
        rest = [found.get(name) for name in self.names[len(values) :]]
        if sum(value is not None for value in rest) != len(found):
            raise ValueError(f"columns {', '.join(found)} were not all there in the first step")
        undefined = values[0].new_tensor(math.nan)
        row = [*values, *(undefined if value is None else value for value in rest)]
        self._pending.append(torch.stack([value.detach().double() for value in row]))
        self._planned.append((batch_size, *schedule))

    def flush(self) -> np.ndarray:
        """Move what is pending to the host; returns it, shape ``[steps since the last flush, columns]``."""
        rows = torch.stack(self._pending).cpu().numpy() if self._pending else np.empty((0, len(self.names)))
        self._pending = []
        self._rows.append(rows)
        return rows

    def table(self) -> np.ndarray:
        """Every flushed row, shape ``[steps, columns]``."""
        return np.concatenate(self._rows) if self._rows else np.empty((0, len(self.names)))

    def planned(self) -> np.ndarray:
        """Batch size and the columns of the batch schedule of every step, shape ``[steps, 1 + columns]``."""
        return np.array(self._planned, dtype=np.float64).reshape(-1, 1 + len(self._schedule))

    def restore(self, table: np.ndarray, names: Sequence[str], planned: np.ndarray) -> None:
        """Start from the rows of an earlier :meth:`table` with its ``names``, and of :meth:`planned`."""
        self.names = tuple(names)
        self._rows, self._pending = [table], []
        self._planned = [(int(row[0]), *row[1:]) for row in planned.tolist()]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every flushed column by name, each of shape ``[steps]``, with ``step``, ``examples``, ``batch_size`` and
        those of the batch schedule in front."""
        table = self.table()
        step = np.arange(1, len(table) + 1, dtype=np.int64)
        planned = self.planned()[: len(table)]
        batch_size = planned[:, 0].astype(np.int64)
        arrays = {"step": step, "examples": np.cumsum(batch_size), "batch_size": batch_size}
        arrays |= {name: planned[:, 1 + index] for index, name in enumerate(self._schedule)}
        return arrays | {name: table[:, index] for index, name in enumerate(self.names)}
