"""The parts of a training loop: their protocol, the step that is passed to them, and the small ones.

These are clipping, diagnostics, the average of the weights, the batch for the optimizer, and the saved weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from cbs.compute.sharding import parted, parted_state, whole
from cbs.diagnostics import Diagnostic, UpdateDiagnostic
from cbs.errors import ConfigError
from cbs.optimizers.problem import ProblemOptimizer
from cbs.schedules.batch_size import Stage
from cbs.training.averaging import WeightAverage
from cbs.training.ranks import Ranks
from cbs.trial.record import CLIPPED
from cbs.workloads.base import Batch


@dataclass
class TrainingStep:
    """One optimizer update in progress.

    Attributes:
        number: number of the update, counted from 1.
        stage: its batch size, in examples over all ranks, and its factor of the learning rate.
        examples: number of examples seen by the trial, including this update.
        batch: the examples that this rank trains on, on its device; ``None`` until they are drawn.
        watching: context managers that are entered around every forward pass of the update.
        noise_measured: whether the noise scale of this update is measured.
        values: values of the columns of the step by name, tensors of shape ``[]``; ``train_loss`` is the first.
        late: values of columns that are NaN in ``values`` and known only after the optimizer's step, by name.
        planned: values of columns that are plain numbers, never on the device, by name.
    """

    number: int
    stage: Stage
    examples: int
    batch: Batch = None
    watching: list[AbstractContextManager[Any]] = field(default_factory=list)
    noise_measured: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)
    late: dict[str, Tensor] = field(default_factory=dict)
    planned: dict[str, float] = field(default_factory=dict)


class Part:
    """Something that runs along with training: it records steps, changes gradients, or keeps state.

    :class:`~cbs.training.loop.TrainingLoop` has a list of parts and calls each method on all of them in this order; by
    default they do nothing. For one update the calls are ``begin``, forward and backward passes, ``before_step``, the
    optimizer's step, ``after_step``. Every rank calls them for every update.

    Attributes:
        columns: names of the columns that the part puts into ``step.values`` in every update.
        planned: names of the columns that the part puts into ``step.planned`` in every update.
    """

    columns: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()

    def begin(self, step: TrainingStep) -> None:
        """Called when an update begins: its batch size is known, its examples are not drawn yet."""

    def before_step(self, step: TrainingStep) -> None:
        """Called before the optimizer's step, when every ``.grad`` holds the gradient of the update's mean loss over
        all ranks.
        """

    def after_step(self, step: TrainingStep) -> None:
        """Called after the optimizer has updated the weights."""

    def state(self) -> dict[str, Any]:
        """Return what a later process needs to continue from the latest evaluation: tensors and plain values.

        The loop calls this when it writes a checkpoint.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state`.

        Called before the first update of this process; model and optimizer are restored before other parts.
        """


class Clipping(Part):
    """Scales gradients with a norm above ``clip_norm`` down to it, and records 1 where that was done, else 0.

    Args:
        model: model whose gradients are clipped, all parameters together.
        clip_norm: largest Euclidean norm.
        shard: whether the model is sharded over ranks.
    """

    columns = (CLIPPED,)

    def __init__(self, model: nn.Module, clip_norm: float, shard: bool) -> None:
        self._model, self._limit, self._shard = model, clip_norm, shard

    def before_step(self, step: TrainingStep) -> None:
        norm = clip_grad_norm_(self._model.parameters(), self._limit)  # the norm before clipping
        step.values[CLIPPED] = ((whole(norm) if self._shard else norm) > self._limit).double()


class Diagnostics(Part):
    """Records diagnostics of the passes and the update in one step of every ``every``, starting with the first.

    Args:
        diagnostics: diagnostics to record; their columns are fixed by the first step.
        every: number of steps from one recorded step to the next.
        model: model that is trained.
        optimizer: optimizer of the trial.
    """

    def __init__(
        self, diagnostics: Iterable[Diagnostic], every: int, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._diagnostics, self._every = tuple(diagnostics), every
        self._model, self._optimizer = model, optimizer

    def _due(self, step: TrainingStep) -> Sequence[Diagnostic]:
        # of the first step, too: it fixes the columns
        return self._diagnostics if (step.number - 1) % self._every == 0 else ()

    def begin(self, step: TrainingStep) -> None:
        step.watching += self._due(step)

    def before_step(self, step: TrainingStep) -> None:
        for diagnostic in self._due(step):
            if isinstance(diagnostic, UpdateDiagnostic):
                # known after the step; the columns must be there before
                nothing = step.values["train_loss"].new_tensor(math.nan)
                columns: Mapping[str, Tensor] = dict.fromkeys(
                    diagnostic.before_step(self._model, self._optimizer), nothing
                )
            else:
                columns = diagnostic.columns()
            if taken := step.values.keys() & columns.keys():
                raise ConfigError(f"{type(diagnostic).__name__} has columns that already exist: {', '.join(taken)}")
            step.values |= columns

    def after_step(self, step: TrainingStep) -> None:
        for diagnostic in self._due(step):
            if isinstance(diagnostic, UpdateDiagnostic):
                step.late |= diagnostic.columns()


class OptimizerBatch(Part):
    """Passes the examples of the step to an optimizer that evaluates the model itself."""

    def __init__(self, optimizer: ProblemOptimizer) -> None:
        self._optimizer = optimizer

    def before_step(self, step: TrainingStep) -> None:
        self._optimizer.observe(step.batch)


class Averaging(Part):
    """Updates an average of the weights during training.

    Args:
        average: average to update.
        before: number of examples seen by the parent of the trial.
    """

    def __init__(self, average: WeightAverage, before: int = 0) -> None:
        self._average, self._before = average, before

    def after_step(self, step: TrainingStep) -> None:
        self._average.update(self._before + step.examples, step.stage.batch_size)

    def state(self) -> dict[str, Any]:
        return self._average.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state)


class SavedWeights(Part):
    """Part of the loop that saves and restores the state of model and optimizer.

    Args:
        model: model that is trained.
        optimizer: optimizer of the trial.
        ranks: the workers of the trial; if they shard the model, its state is gathered on the first of them.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
        self._model, self._optimizer, self._ranks = model, optimizer, ranks

    def state(self) -> dict[str, Any]:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return whole(state, keep=self._ranks.first) if self._ranks.shard else state

    def load_state(self, state: dict[str, Any]) -> None:
        self.load(state["model"], state["optimizer"])

    def load(self, model: Mapping[str, Any], optimizer: dict[str, Any] | None) -> None:
        """Load whole tensors; without an optimizer state the optimizer stays as it is."""
        if self._ranks.shard:
            model = parted(dict(model), self._model.state_dict())
        self._model.load_state_dict(model)
        if optimizer is None:
            return
        if self._ranks.shard:
            groups = self._optimizer.param_groups
            optimizer = parted_state(optimizer, [weight for group in groups for weight in group["params"]])
        self._optimizer.load_state_dict(optimizer)
