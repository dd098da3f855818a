"""The gradient of a step, summed over forward and backward passes on parts of its examples."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.compute import device as devices
from cbs.compute.eager import unwrapped
from cbs.training.checks import check_losses
from cbs.training.micro_batches import split_batch
from cbs.training.parts import TrainingStep
from cbs.training.ranks import Ranks
from cbs.training.step_passes import StepPasses
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload


@dataclass
class Gradient:
    """Computation of the gradient of a step's mean loss into ``.grad``, however its examples are divided into passes.

    Attributes:
        config: configuration of the trial.
        workload: workload whose losses are differentiated.
        model: the model as it is trained.
        optimizer: optimizer whose gradients are cleared.
        passes: divides the examples of a step into passes.
        device: device of the model.
        ranks: the workers of the trial.
        in_pass: number of examples in the current forward pass.
        largest_pass: number of examples in the largest pass of the current step.
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
        self._clear = unwrapped(type(self.optimizer).zero_grad)

    def compute(self, step: TrainingStep, examples: int) -> Tensor:
        """Run the forward and backward passes of a step; return its mean loss over all ranks, shape ``[]``.

        Args:
            step: the step, with its batch.
            examples: number of examples in this rank's part of the batch.
        """
        self._clear(self.optimizer, set_to_none=True)
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
