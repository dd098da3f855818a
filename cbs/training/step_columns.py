"""One row per optimizer update, gathered without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbs.training.parts import Part, TrainingStep


class StepColumns(Part):
    """The columns of ``steps.parquet``: device scalars since the last flush, numbers before it.

    Comes after all parts that give values, in ``before_step``.

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

    def before_step(self, step: TrainingStep) -> None:
        """Add the row of a step, NaN in the columns it has no value of; those of the first step are there ever after.

        Raises:
            ValueError: if the step has a column that the first one did not have.
        """
        values = step.values
        if not self._rows and not self._pending:
            self.names = (*self.names, *(name for name in values if name not in self.names))
        row = [values.get(name) for name in self.names]
        if sum(value is not None for value in row) != len(values):
            late = ", ".join(name for name in values if name not in self.names)
            raise ValueError(f"columns {late} were not all there in the first step")
        undefined = values["train_loss"].new_tensor(math.nan)
        filled = [undefined if value is None else value for value in row]
        self._pending.append(torch.stack([value.detach().double() for value in filled]))
        self._planned.append((step.stage.batch_size, *(step.planned[name] for name in self._schedule)))

    def after_step(self, step: TrainingStep) -> None:
        """Fill in what is known only now.

        Raises:
            ValueError: if it has no column.
        """
        if step.late:
            places = torch.tensor([self.names.index(name) for name in step.late], device=self._pending[-1].device)
            self._pending[-1][places] = torch.stack([value.detach().double() for value in step.late.values()])

    def flush(self) -> np.ndarray:
        """Move what is pending to the host; returns it, shape ``[steps since the last flush, columns]``."""
        rows = torch.stack(self._pending).cpu().numpy() if self._pending else np.empty((0, len(self.names)))
        self._pending = []
        self._rows.append(rows)
        return rows

    def table(self) -> np.ndarray:
        """Every flushed row, shape ``[steps, columns]``."""
        return np.concatenate(self._rows) if self._rows else np.empty((0, len(self.names)))

    def schedule_table(self) -> np.ndarray:
        """Batch size and the columns of the batch schedule of every step, shape ``[steps, 1 + columns]``."""
        return np.array(self._planned, dtype=np.float64).reshape(-1, 1 + len(self._schedule))

    def batch_sizes(self) -> list[int]:
        """Batch size of every step."""
        return [int(row[0]) for row in self._planned]

    def state(self) -> dict[str, Any]:
        """Every flushed row."""
        return {
            "names": list(self.names),
            "table": torch.from_numpy(self.table()),
            "planned": torch.from_numpy(self.schedule_table()),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.names = tuple(state["names"])
        self._rows, self._pending = [state["table"].numpy()], []
        self._planned = [(int(row[0]), *row[1:]) for row in state["planned"].numpy().tolist()]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every flushed column by name, each of shape ``[steps]``, with ``step``, ``examples``, ``batch_size`` and
        those of the batch schedule in front."""
        table = self.table()
        step = np.arange(1, len(table) + 1, dtype=np.int64)
        planned = self.schedule_table()[: len(table)]
        batch_size = planned[:, 0].astype(np.int64)
        arrays = {"step": step, "examples": np.cumsum(batch_size), "batch_size": batch_size}
        arrays |= {name: planned[:, 1 + index] for index, name in enumerate(self._schedule)}
        return arrays | {name: table[:, index] for index, name in enumerate(self.names)}
