"""Base class of the sources: a source sees the gradient of every group of examples during the backward passes, without
keeping it.
"""

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
    """Base class of objects that watch the backward passes of a model after :meth:`attach`. A source never changes a
    gradient.

    Args:
        model: the module that the training loop calls.
        parameters: trainable parameter tensors.
        geometries: geometries to measure in.
        groups: number of groups wanted, per step or per backward pass.
        count: returns the number of examples in a forward pass.
        grouping: groups of examples that belong together.

    Attributes:
        micro_batches: least number of micro-batches into which a training loop should split a step.
        backward_passes: number of extra backward passes in a measured step, according to the latest one.
        active: whether the passes of this step are watched; while ``False``, the model runs as if nothing was attached.
            Changed between steps only.
        sample: entries of the gradients that the backward passes computed.
        ranks: process groups whose ranks average their gradients, where this cannot be read off the model.
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
        """Number of examples in a group of examples that belong together."""
        return self._passes.latest.members

    @property
    def caveat(self) -> str:
        """What could not be checked; empty if everything was."""
        if self._passes.unequal is None:
            return ""
        fewest, most = self._passes.unequal
        return (
            f"micro-batches of {fewest} to {most} examples in a step: correct only if the loss of each is weighted by "
            "its number of examples, not divided by the number of micro-batches"
        )

    def end_step(self) -> None:
        """End the step: later passes belong to the next one."""
        self._passes.end_step()

    def attach(self) -> None:
        """Start watching.

        Raises:
            ConfigError: if the source does not support the model; the message says why and what to use.
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

    def differentiate(self, loss: Tensor) -> None:  # noqa: B027 - most sources do not use it
        """Treat a loss as the end of the current forward pass, for models whose modules do not return it.

        Called before the backward pass of the loss; does nothing by default.
        """

    @abstractmethod
    def collect(self) -> Small | None:
        """Return the small-batch side of everything since the last call, and forget it; ``None`` without a backward
        pass.

        Raises:
            ConfigError: if the passes of the step cannot be measured. The gradients of training are unaffected.
        """

    def _watch(self) -> list[RemovableHandle]:
        """Register a hook on every parameter tensor and return the handles."""
        handles = []
        for index, tensor in enumerate(self._parameters):
            trained = tensor.requires_grad  # a hook can be registered only while this is true, but stays
            handles.append(tensor.requires_grad_().register_hook(self._hook(index)))
            tensor.requires_grad_(trained)
        return handles

    @abstractmethod
    def _hook(self, index: int) -> Callable[[Tensor], None]:
        """Return the function that is called with the gradient a backward pass computed for a parameter tensor."""
