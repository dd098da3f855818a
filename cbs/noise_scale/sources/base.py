"""Where the small-batch side comes from: a source sees the gradient of every group of examples during the backward
passes, without keeping it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.gradient_sample import GradientSample
from cbs.noise_scale.grouping import Grouping
from cbs.noise_scale.passes import CountExamples, ForwardPasses, first_dimension
from cbs.noise_scale.small_batch import GroupSums, Small


class Source(ABC):
    """Watches the backward passes of a model, from :meth:`attach` on. It never changes a gradient.

    Args:
        model: what is called in the training loop.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: groups wanted, of a step or of a backward pass.
        count: number of examples of a forward pass.
        grouping: which of them belong together.

    Attributes:
        micro_batches: micro-batches a training loop should at least make of a step.
        backward_passes: that a measured step takes beside its own, as the latest has shown.
        active: whether the passes of this step are watched; while it is off, the model runs as if nothing was attached.
            Changed between steps only.
        sample: entries of the gradients that its backward passes found.
        ranks: process groups whose ranks average their gradients, where the source knows better than the model shows.
    """

    micro_batches = 1
    backward_passes = 0
    ranks: Sequence[Any] = ()

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        geometries: Sequence[Geometry],
        *,
        groups: int = 2,
        count: CountExamples = first_dimension,
        grouping: Grouping | None = None,
    ) -> None:
        self.active = True
        self.sample = GradientSample(parameters)
        self._model = model
        self._parameters = parameters
        self._geometries = geometries
        self._groups = groups
        self._passes = ForwardPasses(model, count, grouping)
        self._handles: list[RemovableHandle] = []

    @property
    def members(self) -> int:
        """Examples of a group that belong together."""
        return self._passes.latest.members

    @property
    def caveat(self) -> str:
        """What could not be checked; empty if nothing."""
        if self._passes.unequal is None:
            return ""
        fewest, most = self._passes.unequal
        return (
            f"micro-batches of {fewest} to {most} examples in a step: right only where the loss of each is weighted by "
            "its examples, not divided by the number of micro-batches"
        )

    def end_step(self) -> None:
        """What is seen from here on belongs to the next step."""
        self._passes.end_step()

    def attach(self) -> None:
        """Start watching.

        Raises:
            ConfigError: if the model has something this source cannot watch; the message says what and what to use.
        """
        self._sums = GroupSums(self._parameters, self._geometries)
        self._handles = self._watch()
        self._passes.attach()

    def detach(self) -> None:
        """Stop watching and leave the model as it was."""
        self._passes.detach()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def differentiate(self, loss: Tensor) -> None:  # noqa: B027 - most need not know
        """Take a loss for the end of the forward pass under way, where no module returns it, before its backward
        pass."""

    @abstractmethod
    def collect(self) -> Small | None:
        """What was seen since the last call, which is forgotten; ``None`` if there was no backward pass.

        Raises:
            ConfigError: if the passes of the step cannot be measured. Their gradients are those of the unwatched model.
        """

    def _watch(self) -> list[RemovableHandle]:
        """Hooks on the parameter tensors."""
        handles = []
        for index, tensor in enumerate(self._parameters):
            trained = tensor.requires_grad  # a hook stays when that changes, and can be put on only while it is so
            handles.append(tensor.requires_grad_().register_hook(self._hook(index)))
            tensor.requires_grad_(trained)
        return handles

    @abstractmethod
    def _hook(self, index: int) -> Callable[[Tensor], None]:
        """What is called with the gradient that a backward pass found for a parameter tensor."""
