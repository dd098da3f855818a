"""The gradient of a step, summed over the forward and backward passes into which its examples are divided.

A step is divided where it does not fit into memory, and for the noise scale. The gradient is that of the mean loss over
the examples of the step, however they are divided, so every part is weighted by its number of examples. Where a pass
does not fit into memory, :func:`cbs.compute.pass_sizes.halved` gives the next size to try.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cbs.compute import device as devices
from cbs.compute.pass_sizes import even_sizes, micro_sizes
from cbs.compute.state import State, auxiliary_pass, evaluating
from cbs.errors import ConfigError
from cbs.noise_scale.probe import PER_EXAMPLE, SPLIT, Probe
from cbs.optimizers.contract import unwrapped
from cbs.training.parts import Part, TrainingStep
from cbs.training.ranks import Ranks
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload
from cbs.workloads.base import Batch
from cbs.workloads.streams import split_batch


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """Comparison of two ways to divide the examples of a step into passes.

    Attributes:
        gradients: whether the gradients of the step differ by more than rounding.
        drew: whether the passes drew random numbers.
        drew_others: whether the two ways left the random generators in different states.
        buffer: name of a buffer that has different values afterwards; empty if there is none.
    """

    gradients: bool
    drew: bool
    drew_others: bool
    buffer: str

    @property
    def difference(self) -> str:
        """How the result depends on the division, in words; empty if it does not."""
        if self.buffer:
            return f"buffer {self.buffer!r} has other values after smaller passes"
        if self.drew_others or (self.drew and self.gradients):
            return "smaller passes draw other random numbers"
        return "the gradient of a step differs in smaller passes" if self.gradients else ""


def compare(
    model: nn.Module, gradients: Callable[[Sequence[int]], Sequence[Tensor]], one: Sequence[int], other: Sequence[int]
) -> Cutting:
    """Run the passes of a step in two ways from the same state; buffers and random generators are restored afterwards.

    Args:
        model: model that the passes run, in the mode in which they are to be compared.
        gradients: returns the gradients of the step's mean loss, given the sizes of its passes.
        one, other: sizes of the passes, for the same examples in the same order.
    """
    before = State(model, random=True)
    sums, ends = [], []
    try:
        for sizes in (one, other):
            sums.append(gradients(sizes))
            ends.append(State(model, random=True))
            before.restore()
    finally:
        before.restore()
    rounding = max(torch.finfo(gradient.dtype).eps for gradient in sums[0]) ** 0.5
    apart, size = (
        sum(float(entry.double().square().sum()) for entry in map(torch.abs, entries))
        for entries in ([a - b for a, b in zip(*sums, strict=True)], sums[0])
    )
    return Cutting(
        gradients=apart > rounding**2 * size,
        drew=before.drew(ends[0]),
        drew_others=ends[0].drew(ends[1]),
        buffer=ends[0].other_buffer(ends[1], rounding),
    )


# Measured steps, beside every thousandth, in which it is checked whether examples influence each other: this may
# change as the model learns, and each check costs as much as two steps.
CHECKED = (1, 10, 100)

COUPLED = "the loss of an example depends on other examples in its batch"


class PassTooLarge(MemoryError):
    """Memory was full in a training step; the same step may fit with smaller passes.

    Attributes:
        examples: number of examples in the largest forward and backward pass of that step.
    """

    def __init__(self, examples: int, why: str) -> None:
        self.examples = examples
        super().__init__(why)


class StepPasses(Part):
    """The sizes of a step's passes.

    A measurement never changes the training: a step is divided for the noise scale only while that changes nothing but
    rounding, in the mode in which the model trains. A loss that couples the examples of a pass is not measured with a
    source that looks inside the pass.

    Args:
        model: model that is trained.
        losses: returns the losses of the examples in a part of a batch, given the model and that part.
        most: largest number of examples in a pass; ``None`` for no limit.
        probe: probe that measures the noise scale, if any.
    """

    def __init__(
        self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor], most: int | None, probe: Probe | None
    ) -> None:
        self.probe = probe
        self._measured, self._compared = 0, False
        self._model, self._losses, self._most = model, losses, most

    def sizes(self, batch: Batch, examples: int) -> list[int]:
        """Return the number of examples in every pass of the next step."""
        needed, probe = micro_sizes(examples, self._most), self.probe
        if probe is None or not probe.watching:
            return needed
        self._measured += 1
        due = examples > 1 and (self._measured in CHECKED or self._measured % 1000 == 0)
        if due and probe.source in (SPLIT, PER_EXAMPLE):
            with evaluating(self._model):
                cutting = self.compare(batch, [examples], [1, *even_sizes(examples - 1, min(2, examples - 1))])
            if cutting is not None and cutting.gradients and not cutting.drew:
                (probe.fall_back if probe.automatic and len(needed) > 1 else probe.stop)(COUPLED)
        wanted = micro_sizes(examples, self._most, probe.micro_batches)
        cut = len(wanted) > len(needed)
        first_cut = cut and not self._compared
        self._compared = self._compared or cut
        if cut and probe.watching and (due or first_cut):
            # One pass more than will run: even parts can hide that the model selects among the examples of a batch.
            cutting = self.compare(batch, needed, micro_sizes(examples, self._most, probe.micro_batches + 1))
            difference = "the model does not run on parts of a batch" if cutting is None else cutting.difference
            if difference:
                probe.stop(
                    f"that would change the training, because {difference}; it can be measured where every step has "
                    "several passes anyway (--set micro_batch_size=N)"
                )
        return wanted if probe.watching else needed

    def state(self) -> dict[str, Any]:
        """Return the number of steps that were to be measured, and whether dividing a step was checked."""
        return {"measured": self._measured, "compared": self._compared}

    def load_state(self, state: dict[str, Any]) -> None:
        self._measured, self._compared = state["measured"], state["compared"]

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Run a block of forward and backward passes that are not part of training."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(auxiliary_pass())
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))  # cuDNN's RNNs have no backward in eval mode
            if self.probe is not None:
                stack.enter_context(self.probe.paused())
            yield

    def compare(self, batch: Batch, one: Sequence[int], other: Sequence[int]) -> Cutting | None:
        """Compare two ways to divide the examples of a step, in full precision and without any effect on training.

        ``None`` if the model fails in one of them.
        """
        weights = [weight for weight in self._model.parameters() if weight.requires_grad]

        def gradients(sizes: Sequence[int]) -> list[Tensor]:
            total = [torch.zeros_like(weight) for weight in weights]
            for size, part in split_batch(batch, sizes):
                loss = check_losses(self._losses(self._model, part), size).sum() / sum(sizes)
                more = torch.autograd.grad(loss, weights, allow_unused=True)
                total = [mine if own is None else mine + own for mine, own in zip(total, more, strict=True)]
            return total

        with self.beside():
            try:
                return compare(self._model, gradients, one, other)
            except Exception:  # noqa: BLE001 - the model fails on a part, or memory is short
                return None


def check_losses(losses: Any, examples: int) -> Tensor:
    """Check what a workload returned as the losses of this many examples.

    Training minimizes their mean. A mean over fewer values or more dimensions would be another loss, with another best
    learning rate.

    Raises:
        ConfigError: if it is not a tensor of shape ``[examples]``.
    """
    if not isinstance(losses, Tensor):
        raise ConfigError(f"example_losses must return a tensor of one loss per example, got {type(losses).__name__}")
    if losses.shape != (examples,):
        raise ConfigError(
            f"example_losses must return one loss per example, shape [{examples}], got shape {list(losses.shape)}"
        )
    return losses


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
