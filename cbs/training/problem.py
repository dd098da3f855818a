"""A workload as seen by an optimizer that evaluates the model itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cbs.compute import device as devices
from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.optimizers.problem import Problem
from cbs.trial.config import TrialConfig
from cbs.workloads.base import Batch, PredictiveWorkload, Workload


def problem_of(
    workload: Workload, model: nn.Module, config: TrialConfig, device: torch.device, micro_batch_size: int | None
) -> Problem:
    """Return the problem that a trial poses to its optimizer, with outputs in the trial's precision.

    Args:
        workload: workload of the trial, built.
        model: model that the trial trains.
        config: configuration of the trial.
        device: device to train on.
        micro_batch_size: largest number of examples in a forward pass; ``None`` for no limit.

    Raises:
        ConfigError: if the workload does not expose the outputs of its model.
    """
    if not isinstance(workload, PredictiveWorkload):
        raise ConfigError(
            f"optimizer {config.optimizer.name!r} needs the model's outputs: workload {config.workload.name!r} "
            "must define outputs, output_losses and curvature_sample (see cbs.workloads.base.PredictiveWorkload)"
        )

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        with devices.autocast(device, config.precision):
            return workload.outputs(model, batch).float()

    return Problem(
        model=model,
        outputs=outputs,
        output_losses=workload.output_losses,
        curvature_sample=workload.curvature_sample,
        seed=seeding.derive(config.seed, "optimizer"),
        micro_batch_size=micro_batch_size,
    )
