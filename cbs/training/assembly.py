"""The objects that make up a trial (model, optimizer, data, parts of the loop), and their saved state."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cbs.compute import seeding
from cbs.diagnostics import build_diagnostics
from cbs.errors import out_of_memory, reason
from cbs.optimizers.problem import ProblemOptimizer
from cbs.schedules.learning_rate import build_schedule, of_branch
from cbs.training.averaging import build_averaging
from cbs.training.batch_sizes import BatchSizes
from cbs.training.building import model_of, optimizer_of, smaller
from cbs.training.noise_scale import NoiseScalePart
from cbs.training.parents import KIND
from cbs.training.parts import Averaging, Clipping, Diagnostics, OptimizerBatch, Part, SavedWeights, TrainingStep
from cbs.training.passes import Gradient, StepPasses
from cbs.training.ranks import ALONE, Ranks
from cbs.training.validation import Validation
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement
from cbs.workloads import Workload
from cbs.workloads.base import Batch
from cbs.workloads.streams import skip


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


@dataclass
class Assembly:
    """The objects of a trial, built from its configuration, and its progress.

    Attributes:
        config: configuration of the trial.
        workload: model, data and metric.
        device: device to train on, see :func:`cbs.compute.device.pick`.
        ranks: the workers that take every step together.
        most: largest number of examples in a forward and backward pass that fits into memory, where that is known to be
            less than configured.
        parts: parts of the loop in the order in which they are called, see :class:`~cbs.training.parts.Part`.
        alive: called with the number of the step after every step and every evaluation.
    """

    config: TrialConfig
    workload: Workload
    device: torch.device
    ranks: Ranks = ALONE
    most: int | None = None

    def __post_init__(self) -> None:
        config, ranks = self.config, self.ranks
        ranks.check(config)
        self.micro_batch_size = smaller(config.micro_batch_size, self.most)
        diagnostics = build_diagnostics(config.diagnostics, compiled=config.compile)
        self.model = model_of(config, self.workload, self.device, ranks, self.most)
        self.optimizer = optimizer_of(config, self.workload, self.model, self.device, ranks, self.micro_batch_size)
        # Before the first step: a branch tells from these which options training changed.
        self.groups_at_start = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        self.average = build_averaging(config.averaging, self.model, self.optimizer) if config.averaging else None
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.called: nn.Module = torch.compile(self.model) if config.compile else self.model  # type: ignore[assignment]
        self.trained = ranks.wrapped(self.called)
        self.stream = self.workload.training_stream(seeding.generator(config.seed, "data"))
        self.noise_scale = (
            NoiseScalePart(config, self.trained, self.optimizer, ranks, lambda: self.gradient.in_pass)
            if config.probe is not None
            else None
        )
        probe = self.noise_scale.measured.probe if self.noise_scale and ranks.world == 1 else None
        self.passes = StepPasses(self.model, self.workload.example_losses, self.micro_batch_size, probe)
        self.gradient = Gradient(config, self.workload, self.trained, self.optimizer, self.passes, self.device, ranks)
        geometries = self.noise_scale.measured.geometries if self.noise_scale else ()
        self.sizes = BatchSizes(config, self.workload.tokens_per_example, self.optimizer, geometries)
        self.multiplier = of_branch(self.sizes.multiplier or build_schedule(config.schedule), config.parent)
        measuring: list[Part | None] = [
            self.noise_scale,
            self.sizes,
            Clipping(self.model, config.clip_norm, ranks.shard) if config.clip_norm else None,
            Diagnostics(diagnostics, config.diagnostics_every, self.model, self.optimizer),
        ]
        giving = [part for part in measuring if part is not None]
        self.columns = StepColumns(
            [name for part in giving for name in part.columns], [name for part in giving for name in part.planned]
        )
        self.saved_weights = SavedWeights(self.model, self.optimizer, ranks)
        # The order counts: weights are restored before what reads them, the noise scale reads gradients before they are
        # clipped, diagnostics see them clipped, and the columns come after all that fill them.
        self.parts: list[Part] = [self.saved_weights, self.passes, *giving, self.columns]
        if isinstance(self.optimizer, ProblemOptimizer):
            self.parts.append(OptimizerBatch(self.optimizer))
        if self.average is not None:
            self.parts.append(Averaging(self.average, 0 if config.parent is None else config.parent.examples))
        self.validation = Validation(
            config,
            self.workload,
            self.model,
            self.called,
            self.optimizer,
            self.average,
            self.device,
            ranks,
            self.to_device,
            self.passes.beside,
        )
        self.alive: Callable[[int], object] = lambda step: None
        self.seen = 0
        self.evaluations: list[Measurement] = []
        self.training_seconds = self.evaluation_seconds = 0.0

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch with every tensor on the trial's device."""
        return tree_map(
            lambda leaf: leaf.to(self.device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, batch
        )

    def state(self) -> dict[str, Any]:
        """Return everything that a later process needs to continue from the latest evaluation."""
        return {
            "parts": {type(part).__name__: part.state() for part in self.parts},
            "validation": self.validation.state(),
            "evaluations": [dataclasses.asdict(row) for row in self.evaluations],
            "seconds": (self.training_seconds, self.evaluation_seconds),
            "random": seeding.states(),
            "micro_batch_size": self.micro_batch_size,
        }

    def birth_state(self) -> dict[str, Any]:
        """Return what another trial needs to start here, see :mod:`cbs.training.birth`; also valid between two
        evaluations.
        """
        kept = [part for part in self.parts if isinstance(part, SavedWeights | Averaging | NoiseScalePart)]
        return {
            KIND: 1,
            "config": json.dumps(self.config.to_dict(), sort_keys=True),
            "parts": {type(part).__name__: part.state() for part in kept},
            "groups": self.groups_at_start,
            "batch_sizes": torch.tensor(self.columns.batch_sizes(), dtype=torch.int64),
            "random": seeding.states(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state`; the training stream continues after the examples seen so far."""
        for part in self.parts:
            part.load_state(state["parts"][type(part).__name__])
        self.validation.load_state(state["validation"])
        self.evaluations = [Measurement(**row) for row in state["evaluations"]]
        self.training_seconds, self.evaluation_seconds = state["seconds"]
        done, recorded, sizes = self.evaluations[-1].step, len(self.columns.table()), self.columns.batch_sizes()
        self.seen = sum(sizes)
        if not (0 <= done == recorded == len(sizes) and self.seen <= self.config.max_examples):
            raise ValueError(
                f"{recorded} steps recorded at step {done}, {self.seen} examples of a budget of "
                f"{self.config.max_examples}"
            )
        skip(self.stream, sizes)
        if self.ranks.first:
            seeding.set_states(state["random"])
        else:  # the saved state is the first rank's, and other ranks draw other numbers
            seeding.start(self.config.seed, self.ranks.purpose(f"training from step {done}"))

    def resume(self, saved: dict[str, Any], checkpoint: Checkpoint) -> bool:
        """Resume from the content of a checkpoint; return whether the loop can run, which is not the case if the
        content does not fit.
        """
        try:
            self.load_state(saved)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if out_of_memory(error):
                raise
            if self.ranks.first:
                checkpoint.refuse(f"{type(error).__name__}: {reason(error)}")
            return False
        return True
