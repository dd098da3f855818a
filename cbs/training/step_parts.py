"""Small parts of a trial: clipping, averages of weights, diagnostics, the batch for the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from cbs.compute.sharding import whole
from cbs.diagnostics import Diagnostic, UpdateDiagnostic
from cbs.errors import ConfigError
from cbs.optimizers.problem import ProblemOptimizer
from cbs.training.averaging import WeightAverage
from cbs.training.parts import Part, TrainingStep
from cbs.trial.record import CLIPPED


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
        norm = clip_grad_norm_(self._model.parameters(), self._limit)
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
        return self._diagnostics if (step.number - 1) % self._every == 0 else ()

    def begin(self, step: TrainingStep) -> None:
        step.watching += self._due(step)

    def before_step(self, step: TrainingStep) -> None:
        for diagnostic in self._due(step):
            if isinstance(diagnostic, UpdateDiagnostic):
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
