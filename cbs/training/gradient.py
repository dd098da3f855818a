"""The gradient of a step: forward and backward passes over parts of its examples, summed up."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.compute import device as devices
from cbs.training.checks import check_losses
from cbs.training.micro_batches import split_batch
from cbs.training.parts import TrainingStep
from cbs.training.ranks import Ranks
from cbs.training.step_passes import StepPasses
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload


@dataclass
class Gradient:
    """Fills ``.grad`` with the gradient of the mean loss of a step, however its examples are cut up.

    Attributes:
        config: of the trial.
        workload: whose losses are differentiated.
        model: as it is trained.
        optimizer: whose gradients are cleared.
        passes: how the examples of a step are cut up.
        device: where.
        ranks: the workers of the trial.
        in_pass: examples of the forward pass under way.
        largest_pass: of the step under way, examples of its largest pass.
    """

    config: TrialConfig
    workload: Workload
    model: nn.Module
    optimizer: torch.optim.Optimizer
    passes: StepPasses
    device: torch.device
    ranks: Ranks

    def __post_init__(self) -> None:
        self.in_pass = self.largest_pass = self.config.batch_size

    def compute(self, step: TrainingStep, examples: int) -> Tensor:
        """Forward and backward passes of a step; returns its mean loss over all ranks, shape ``[]``.

        Args:
            step: the step, its batch drawn.
            examples: in this rank's part of it.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        sizes = self.passes.sizes(step.batch, examples)
        self.largest_pass = sizes[0]
        for index, (size, part) in enumerate(split_batch(step.batch, sizes)):
            self.in_pass = size
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.ranks.averaging(self.model, last=index == len(sizes) - 1))
                for watcher in step.watching:
                    stack.enter_context(watcher)
                with devices.autocast(self.device, self.config.precision):
                    loss = check_losses(self.workload.example_losses(self.model, part), size).mean()
                if size * self.ranks.world != step.stage.batch_size:
                    loss = loss * (size * self.ranks.world / step.stage.batch_size)
                loss.backward()
            losses.append(loss.detach())
        return self.ranks.mean(torch.stack(losses).sum())
