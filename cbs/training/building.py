"""Build and check the model and the optimizer of a trial before its first step, so that it trains what it should."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from cbs.compute import device as devices
from cbs.compute import seeding
from cbs.compute.pass_sizes import micro_sizes
from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer
from cbs.optimizers.problem import Problem, ProblemOptimizer, check_clipping
from cbs.training.averaging import trained_weights
from cbs.training.ranks import Ranks
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload
from cbs.workloads.base import Batch, PredictiveWorkload


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
            "normalization over smaller passes is another model; to train that model at every batch size: --set "
            "micro_batch_size=N"
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


def check_model(model: Any) -> nn.Module:
    """Check what a workload returned as its model.

    Raises:
        ConfigError: if it is not a module, or has nothing to train yet.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise ConfigError("build_model returned lazy parameters without a shape: call the model on an example first")
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"build_model returned {len(parameters)} parameters, none of which requires a gradient: there is nothing "
            "to train; create parameters in build_model, not in the forward pass"
        )
    return model


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, name: str) -> None:
    """Check that an optimizer trains all parameters, at a learning rate that can be set.

    Raises:
        ConfigError: if a parameter that requires a gradient is not in its groups, or a group has no ``lr``.
    """
    groups = optimizer.param_groups
    if any("lr" not in group for group in groups):
        raise ConfigError(
            f"optimizer {name!r} has no 'lr' in its param_groups, where the schedule of the sweep sets the learning "
            f"rate; it has {', '.join(key for key in groups[0] if key != 'params')}"
        )
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    wanted = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
    left = [key for key, parameter in wanted.items() if id(parameter) not in trained]
    if left:
        raise ConfigError(
            f"optimizer {name!r} does not train {left[0]}, {len(left)} of {len(wanted)} parameters: their gradients "
            "would count in clipping and in the noise scale; call requires_grad_(False) on them in build_model"
        )
