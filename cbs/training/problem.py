"""A workload as an optimizer sees it that evaluates the model itself."""

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
    """The problem that a trial is, its outputs in the trial's precision.

    Args:
        workload: of the trial, built.
        model: the model it trains.
        config: the trial.
        device: where it runs.
        micro_batch_size: most examples of a forward pass, or ``None``.

    Raises:
        ConfigError: if the workload does not show the outputs of its model.
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
