"""Run one trial: from a configuration to its result."""

import dataclasses
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from cbs.compute import device as devices
from cbs.compute import seeding
from cbs.optimizers.base import decided
from cbs.training import birth
from cbs.training.building import smaller
from cbs.training.loop import TrainingLoop
from cbs.training.parents import KeptCheckpoints
from cbs.training.ranks import ALONE, Ranks
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import TrialConfig
from cbs.trial.ending import Ending, Monitor
from cbs.trial.record import Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.workloads import Workload, build_workload


def run_trial(
    config: TrialConfig,
    *,
    workload: Workload | None = None,
    monitor: Monitor | None = None,
    checkpoint: Checkpoint | None = None,
    alive: Callable[[int], None] | None = None,
    most: int | None = None,
    ranks: Ranks = ALONE,
    parent: Path | None = None,
    kept: KeptCheckpoints | None = None,
) -> TrialResult:
    """Train until all targets are reached, the trial diverges, the budget is spent, or the monitor stops it.

    The result is bitwise reproducible for a configuration on one machine with one number of threads. Divergence and an
    exhausted budget are statuses of the result, not exceptions.

    >>> from cbs.registry.choices import Choice
    >>> from cbs.trial.target import Target
    >>> trial = TrialConfig(
    ...     workload=Choice(name="noisy_quadratic", options={"dimension": 10}),
    ...     optimizer=Choice(name="sgd", options={"momentum": 0.5}),
    ...     lr=0.1, batch_size=8, seed=0, max_steps=200,
    ...     target=Target(metric="validation_loss", value=0.5),
    ... )
    >>> result = run_trial(trial)
    >>> result.status.name
    'REACHED'
    >>> 0 < result.steps_to_target <= 200
    True
    >>> len(result.steps["train_loss"]) == result.evaluations[-1].step
    True

    Args:
        config: configuration of the trial.
        workload: the built workload of ``config.workload``, to avoid loading its data again.
        monitor: see :data:`cbs.trial.ending.Monitor`.
        checkpoint: where the trial saves its state from time to time, and from which it continues if it was
            interrupted; the result is bitwise that of an uninterrupted trial. Remove it once the result is stored.
        alive: called with the number of the step, after every step and every evaluation.
        most: largest number of examples in a forward and backward pass that fits into memory, where that is less than
            configured. The result is the same up to rounding for models that treat examples independently.
        ranks: the workers that call this together, each in its own process; all get the same result. Only the first
            one's monitor and checkpoint are used.
        parent: path of the checkpoint of ``config.parent``; ``None`` for its ``source``.
        kept: checkpoints that the trial writes for others to start from.

    Raises:
        ConfigError: if the configuration names something unknown or cannot run on this machine, or its parent belongs
            to another model.
        DataError: if the parent is not a checkpoint.
        PassTooLarge: if memory is full in a training step, which may fit with a smaller ``most``.
        torch.OutOfMemoryError: if the device runs out of memory elsewhere.
    """
    began = time.process_time()
    workload = workload or build_workload(config.workload)
    device = devices.pick(config.device, config.precision, ranks.rank)
    # The first rank decides whether there is something to resume; the others load it only then.
    saved = checkpoint.load() if checkpoint is not None and ranks.first else None
    if ranks.agreed(saved is not None, device) and saved is None and checkpoint is not None:
        saved = checkpoint.load()
    if saved is not None and kept is not None and kept.passed(saved["evaluations"][-1]["examples"]):
        saved = None  # resuming there would miss checkpoints to be kept
    if saved is not None:
        most = smaller(most, saved.get("micro_batch_size"))  # continue with the same passes, also on another machine
    loop = TrainingLoop(config, workload, device, ranks, most)
    if alive is not None:
        loop.alive = alive

    def judged(rows: Sequence[Measurement]) -> Ending | None:
        ending = monitor(rows) if ranks.first and monitor is not None else None
        # the other ranks learn that it ends; how is known to the first, which stores the result
        return (ending or (TrialStatus.PRUNED, "")) if ranks.agreed(ending is not None, device) else None

    with seeding.seeded(config.seed, ranks.purpose("training")):
        if config.parent is not None:
            birth.start(loop, parent or Path(config.parent.source))
        fit = saved is None or checkpoint is None or loop.resume(saved, checkpoint)
        if fit:
            status, message = loop.run(judged, checkpoint, kept)
    if not fit:  # the loop is partly loaded, and the checkpoint was moved away
        return run_trial(
            config,
            workload=workload,
            monitor=monitor,
            checkpoint=checkpoint,
            alive=alive,
            most=most,
            ranks=ranks,
            parent=parent,
            kept=kept,
        )
    passed = status is TrialStatus.REACHED or config.further_targets
    return TrialResult(
        config=config,
        status=status,
        steps_to_target=config.target.crossing(*loop.curve()) if passed else None,
        evaluations=loop.evaluations,
        steps=loop.columns.arrays(),
        geometries=loop.noise_scale.measured.geometries if loop.noise_scale else (),
        workload=dataclasses.replace(_describe(workload, loop.model), metric_unit=loop.validation.unit),
        message="; ".join(filter(None, (message, loop.noise_scale.note if loop.noise_scale else ""))),
        micro_batch_size=None if loop.micro_batch_size == config.micro_batch_size else loop.micro_batch_size,
        directions=dict(loop.validation.directions),
        decided=decided(config.optimizer, loop.optimizer),
        timing={
            "seconds": loop.training_seconds + loop.evaluation_seconds,
            "training_seconds": loop.training_seconds,
            "evaluation_seconds": loop.evaluation_seconds,
            "processor_seconds": time.process_time() - began,
            "device": devices.name(device),
            "host": platform.node(),
            "threads": torch.get_num_threads(),
            **({} if ranks.world == 1 else {"workers": ranks.world}),
        },
    )


def _describe(workload: Workload, model: nn.Module) -> WorkloadInfo:
    return WorkloadInfo(
        example_unit=workload.example_unit,
        tokens_per_example=workload.tokens_per_example,
        metric_unit=workload.metric_unit,
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        data_hash=workload.data_hash,
    )
