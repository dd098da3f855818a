"""Build and check the model and the optimizer of a trial before its first step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from cbs.compute import seeding
from cbs.compute.pass_sizes import micro_sizes
from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer
from cbs.optimizers.problem import ProblemOptimizer, check_clipping
from cbs.training.averaging.weights import trained_weights
from cbs.training.checks import check_model, check_optimizer
from cbs.training.problem import problem_of
from cbs.training.ranks import Ranks
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload


def model_of(
    config: TrialConfig, workload: Workload, device: torch.device, ranks: Ranks, most: int | None
) -> nn.Module:
    """Return the model of a trial on the device, with the initial weights of its seed.

    Args:
        config: configuration of the trial.
        workload: workload that builds the model.
        device: device to train on.
        ranks: the workers of the trial, each of which may hold a part of the model.
        most: largest number of examples in a pass that fits into memory, where that is known.

    Raises:
        ConfigError: if the workload's model cannot be trained.
        MemoryError: if only smaller passes than configured fit into memory and the model has batch normalization.
    """
    with seeding.seeded(config.seed, "init"):
        model = ranks.placed(check_model(workload.build_model()), device)
    if not model.training:  # loaded models come in evaluation mode; a single part in it is left as it is
        model.train()
    cut = most is not None and most < micro_sizes(config.batch_size, config.micro_batch_size)[0]
    if cut and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise MemoryError(
            f"only passes of {smaller(config.micro_batch_size, most)} examples fit into memory, and batch "
            "normalization "
            "over smaller passes is another model; to train that model at every batch size: --set micro_batch_size=N"
        )
    return model


def optimizer_of(
    config: TrialConfig,
    workload: Workload,
    model: nn.Module,
    device: torch.device,
    ranks: Ranks,
    micro_batch_size: int | None,
) -> torch.optim.Optimizer:
    """Return the optimizer of a trial, ready for its first step.

    Args:
        config: configuration of the trial.
        workload: workload that is optimized, for methods that evaluate the model themselves.
        model: model to train.
        device: device to train on.
        ranks: the workers of the trial.
        micro_batch_size: largest number of examples in a forward pass; ``None`` for no limit.

    Raises:
        ConfigError: if the optimizer does not train all of the model, or cannot be used in this trial.
    """
    optimizer = build_optimizer(config.optimizer, model, config.lr, config.batch_size)
    check_optimizer(optimizer, model, config.optimizer.name)
    trained_weights(optimizer)
    if isinstance(optimizer, ProblemOptimizer):
        if ranks.world > 1:
            raise ConfigError(
                f"optimizer {config.optimizer.name!r} evaluates the model itself, and would see only one worker's "
                "examples: use one worker per trial"
            )
        optimizer.attach(problem_of(workload, model, config, device, micro_batch_size))
    check_clipping(optimizer, config.clip_norm)
    return optimizer


def smaller(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two limits; ``None`` stands for no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)
