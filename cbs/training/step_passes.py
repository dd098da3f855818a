"""Sizes of the forward and backward passes into which a step is divided, for memory and for the noise scale."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbs.compute.auxiliary_pass import auxiliary_pass, evaluating
from cbs.compute.pass_sizes import even_sizes, micro_sizes
from cbs.noise_scale.probe import PER_EXAMPLE, SPLIT, Probe
from cbs.training.checks import check_losses
from cbs.training.cutting import Cutting, compare
from cbs.training.micro_batches import split_batch
from cbs.training.parts import Part
from cbs.workloads.base import Batch

CHECKED = (1, 10, 100)
"""Measured steps, beside every thousandth, in which it is checked whether examples influence each other: this may
change as the model learns, and each check costs as much as two steps."""

COUPLED = "the loss of an example depends on other examples in its batch"


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
