"""One source and some geometries: the moments of a step."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES, Geometry
from cbs.noise_scale.moments import Moments, Sizes
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.sources import SOURCES


class Probe:
    """Measures both moments of every step of a training loop.

    Between the last backward pass of a step and anything that changes gradients (unscaling, clipping, the optimizer's
    step), call :meth:`step`.

    Args:
        model: what is called in the training loop.
        optimizer: needed by geometries that belong to one.
        source: name in :data:`~cbs.noise_scale.sources.SOURCES`.
        geometries: names in :data:`~cbs.noise_scale.geometries.GEOMETRIES`.
        groups: groups a backward pass is split into, for sources that split.
        count: number of examples of a forward pass, from its arguments; the first dimension of the first tensor by
            default.

    Attributes:
        parameters: the trainable parameter tensors, in the order of the moments.
        names: theirs.
        micro_batches: micro-batches a step must at least have.

    Raises:
        ConfigError: if a name is unknown, the model has nothing to train, or does not suit the source.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        source: str = "split",
        geometries: Sequence[str] = ("l2",),
        groups: int = 2,
        count: CountExamples = first_dimension,
    ) -> None:
        trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not trainable:
            raise ConfigError("the model has no trainable parameter; there is no gradient to measure")
        self.names = list(trainable)
        self.parameters = list(trainable.values())
        self.geometries: list[Geometry] = [GEOMETRIES[name]() for name in geometries]
        for geometry in self.geometries:
            geometry.bind(self.parameters, optimizer)
        self._covered = [
            [index for index in range(len(self.parameters)) if geometry.covers(index)] for geometry in self.geometries
        ]
        self._source = SOURCES[source](model, self.parameters, self.geometries, groups=groups, count=count)
        self.micro_batches = self._source.micro_batches
        self._source.attach()

    def step(self, *, loss_scale: float = 1.0, gradients_unscaled: bool = False) -> dict[str, Moments] | None:
        """The moments of the step whose gradients are in ``.grad``, per geometry; ``None`` without a backward pass.

        Args:
            loss_scale: factor the loss was multiplied with before the backward passes, as a GradScaler does.
            gradients_unscaled: whether ``.grad`` was divided by it again already.
        """
        small = self._source.collect()
        if small is None:
            return None
        sizes = Sizes(small=small.groups / small.inverse_sizes, big=small.examples, groups=small.groups)
        big_scale = 1.0 if gradients_unscaled else loss_scale**-2
        small_scale = loss_scale**-2 * small.examples**2 / small.groups
        moments = {}
        for geometry, covered, statistics in zip(self.geometries, self._covered, small.statistics, strict=True):
            if sizes.groups < 2:
                undefined = torch.full((len(covered),), float("nan"), dtype=torch.float64)
                moments[geometry.name] = Moments(signal=undefined, noise=undefined, sizes=sizes)
                continue
            whole = [geometry.statistic(index, self._gradient(index)[None]).mul_(big_scale) for index in covered]
            signal, noise = geometry.read([entry.mul_(small_scale) for entry in statistics], whole, sizes)
            moments[geometry.name] = Moments(signal=signal, noise=noise, sizes=sizes)
        return moments

    def detach(self) -> None:
        """Leave the model as it was."""
        self._source.detach()

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _gradient(self, index: int) -> Tensor:
        parameter = self.parameters[index]
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
