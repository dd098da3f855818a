"""Into which forward and backward passes a step is cut, for memory and to be measured."""

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
"""Measured steps in which it is checked what examples do to each other, and every thousandth: that may depend on what
the model has learnt, and each time costs as much as two steps."""

COUPLED = "the loss of an example depends on those beside it"


class StepPasses(Part):
    """The sizes of a step's passes.

    A measurement never changes the training: for its sake a step is cut only while that changes nothing but roundings,
    in the mode in which the model trains. And a loss that couples the examples of a pass is not measured by looking
    inside.

    Args:
        model: that trains.
        losses: of the examples of a part of a batch, from the model and that part.
        most: examples of a pass at most; ``None`` for no limit.
        probe: what measures, if anything does.
    """

    def __init__(
        self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor], most: int | None, probe: Probe | None
    ) -> None:
        self.probe = probe
        self._measured, self._compared = 0, False
        self._model, self._losses, self._most = model, losses, most

    def sizes(self, batch: Batch, examples: int) -> list[int]:
        """Examples of every pass of the coming step."""
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
            # one pass more than will be made: an even cut may leave a choice among the batch as it is
            cutting = self.compare(batch, needed, micro_sizes(examples, self._most, probe.micro_batches + 1))
            difference = "the model does not run on parts of a batch" if cutting is None else cutting.difference
            if difference:
                probe.stop(
                    f"that would change the training, as {difference}; it can be measured where every step has several "
                    "passes anyway (--set micro_batch_size=N)"
                )
        return wanted if probe.watching else needed

    def state(self) -> dict[str, Any]:
        """Steps that were to be measured, and whether it is known what cutting a step does."""
        return {"measured": self._measured, "compared": self._compared}

    def load_state(self, state: dict[str, Any]) -> None:
        self._measured, self._compared = state["measured"], state["compared"]

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Run a block of forward and backward passes that are no part of the training."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(auxiliary_pass())
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))  # whose RNNs have no gradient in evaluation
            if self.probe is not None:
                stack.enter_context(self.probe.paused())
            yield

    def compare(self, batch: Batch, one: Sequence[int], other: Sequence[int]) -> Cutting | None:
        """A step in two ways to cut its examples, of which the training notices nothing, in full precision; ``None``
        where one of them does not run."""
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
            except Exception:  # noqa: BLE001 - what a model raises on a part of a batch, or without room for two gradients
                return None
