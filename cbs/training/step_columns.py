"""Table with one row per optimizer update, collected without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbs.training.parts import Part, TrainingStep


class StepColumns(Part):
    """The columns of ``steps.parquet``: on the device since the last flush, on the host before it.

    In ``before_step`` it has to come after all parts that add values.

    Args:
        columns: names of the columns after ``train_loss``; those of diagnostics follow.
        schedule: names of the columns that the batch schedule fills in, which are plain numbers.
    """

    def __init__(self, columns: Sequence[str], schedule: Sequence[str] = ()) -> None:
        self.names = ("train_loss", *columns)
        self._schedule = tuple(schedule)
        self._planned: list[Sequence[float]] = []
        self._rows: list[np.ndarray] = []
        self._pending: list[Tensor] = []

    def before_step(self, step: TrainingStep) -> None:
        """Add the row of a step, with NaN in columns without a value; the first step fixes the columns of all steps.

        Raises:
            ValueError: if the step has a column that the first one did not have.
        """
        values = step.values
        if not self._rows and not self._pending:
            self.names = (*self.names, *(name for name in values if name not in self.names))
        row = [values.get(name) for name in self.names]
        if sum(value is not None for value in row) != len(values):
            late = ", ".join(name for name in values if name not in self.names)
            raise ValueError(f"columns {late} did not exist in the first step; every step must have the same columns")
        undefined = values["train_loss"].new_tensor(math.nan)
        filled = [undefined if value is None else value for value in row]
        self._pending.append(torch.stack([value.detach().double() for value in filled]))
        self._planned.append((step.stage.batch_size, *(step.planned[name] for name in self._schedule)))

    def after_step(self, step: TrainingStep) -> None:
        """Fill in the values that are known only after the optimizer's step.

        Raises:
            ValueError: if there is no such column.
        """
        if step.late:
            places = torch.tensor([self.names.index(name) for name in step.late], device=self._pending[-1].device)
            self._pending[-1][places] = torch.stack([value.detach().double() for value in step.late.values()])

    def flush(self) -> np.ndarray:
        """Move pending rows to the host and return them, shape ``[steps since the last flush, columns]``."""
        rows = torch.stack(self._pending).cpu().numpy() if self._pending else np.empty((0, len(self.names)))
        self._pending = []
        self._rows.append(rows)
        return rows

    def table(self) -> np.ndarray:
        """Return all flushed rows, shape ``[steps, columns]``."""
        return np.concatenate(self._rows) if self._rows else np.empty((0, len(self.names)))

    def schedule_table(self) -> np.ndarray:
        """Return batch size and columns of the batch schedule for every step, shape ``[steps, 1 + columns]``."""
        return np.array(self._planned, dtype=np.float64).reshape(-1, 1 + len(self._schedule))

    def batch_sizes(self) -> list[int]:
        """Return the batch size of every step."""
        return [int(row[0]) for row in self._planned]

    def state(self) -> dict[str, Any]:
        """Return all flushed rows."""
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
        """Return all flushed columns by name, each of shape ``[steps]``.

        The first ones are ``step``, ``examples``, ``batch_size`` and those of the batch schedule.
        """
        table = self.table()
        step = np.arange(1, len(table) + 1, dtype=np.int64)
        planned = self.schedule_table()[: len(table)]
        batch_size = planned[:, 0].astype(np.int64)
        arrays = {"step": step, "examples": np.cumsum(batch_size), "batch_size": batch_size}
        arrays |= {name: planned[:, 1 + index] for index, name in enumerate(self._schedule)}
        return arrays | {name: table[:, index] for index, name in enumerate(self.names)}
