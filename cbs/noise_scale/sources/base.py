"""Where the small-batch side comes from: a source sees the gradient of every group of examples during the backward
passes, without keeping it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import nn

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.gradient_sample import GradientSample
from cbs.noise_scale.small_batch import Small

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Source(Protocol):
    """Watches the backward passes of a model.

    A source is built from the model, the trainable parameter tensors and the geometries to serve, and has no effect
    until :meth:`attach`. It never changes a gradient.

    Attributes:
        micro_batches: micro-batches a training loop should at least make of a step.
        active: whether the passes of this step are watched; while it is off, the model runs as if nothing was attached.
            Changed between steps only.
        sample: entries of the gradients that its backward passes found.
        caveat: what could not be checked; empty if nothing.
        ranks: process groups whose ranks average their gradients, where the source knows better than the model shows.
    """

    micro_batches: int
    ranks: Sequence[ProcessGroup]
    active: bool
    sample: GradientSample

    @property
    def caveat(self) -> str: ...

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], geometries: Sequence[Geometry], *, groups: int = 2
    ) -> None: ...

    def watched(self, index: int) -> bool:
        """Whether parameter tensor ``index`` is seen by this source; one that is not takes no part in any estimate."""

    def attach(self) -> None:
        """Start watching.

        Raises:
            ConfigError: if the model has something this source cannot watch; the message says what and what to use.
        """

    def detach(self) -> None:
        """Stop watching and leave the model as it was."""

    def collect(self) -> Small | None:
        """What was seen since the last call, which is forgotten; ``None`` if there was no backward pass.

        Raises:
            ConfigError: if the passes of the step cannot be measured. Their gradients are those of the unwatched model.
        """
