"""Sources that look into the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.gradient_sample import GradientSample
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.plan import plan
from cbs.noise_scale.layers.recorder import Recorder
from cbs.noise_scale.layers.separation import Separation
from cbs.noise_scale.passes import CountExamples, ForwardPasses, first_dimension
from cbs.noise_scale.small_batch import Small

CHECKED = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Measured steps in which it is checked that examples do not mix, and every multiple of the last: what they do to each
other may depend on the batch and on what the model has learnt."""


class InsideBackward:
    """Splits every backward pass into groups of examples, exactly, layer by layer.

    Args:
        model: what is called in the training loop.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: groups per forward pass, of sizes that differ by at most one; at most one per example.
        count: number of examples of a forward pass.

    Attributes:
        single: whether every example is a group, whatever ``groups`` says.
    """

    single = False
    micro_batches = 1
    ranks: Sequence[Any] = ()

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        geometries: Sequence[Geometry],
        *,
        groups: int = 2,
        count: CountExamples = first_dimension,
    ) -> None:
        self._parameters = parameters
        self._passes = ForwardPasses(model, count)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._names = [names[id(parameter)] for parameter in parameters]
        self._model = model
        self._geometries = geometries
        self._groups = None if self.single else groups
        self.active = True
        self.sample = GradientSample(parameters)
        self._separation = Separation(model, self._passes, self._due)
        self._measured = 0
        self._layers: list[Layer] = []
        self._handles: list[RemovableHandle] = []

    def watched(self, index: int) -> bool:
        return True

    def attach(self) -> None:
        watched = [index for index in range(len(self._parameters)) if self.watched(index)]
        self._recorder = Recorder(
            self._passes, self._separation, self._parameters, self._names, watched, self._geometries, self._groups
        )
        self._layers = plan(self._model, {id(self._parameters[index]): index for index in watched}, self._recorder)
        for layer in self._layers:
            layer.install(lambda: self.active)
        self._passes.attach()
        self._separation.attach()
        self._handles = [self._parameters[index].register_hook(self._look(index)) for index in watched]

    def detach(self) -> None:
        self._passes.detach()
        self._separation.detach()
        for layer in self._layers:
            layer.remove()
        for handle in self._handles:
            handle.remove()
        self._layers, self._handles = [], []

    def collect(self) -> Small | None:
        found = self._recorder.collect()
        self._measured += found is not None
        return found

    @property
    def caveat(self) -> str:
        why_not = self._separation.why_not
        return f"whether examples mix was not checked: {why_not}; see NoiseScaleMeter.check" if why_not else ""

    def _due(self) -> bool:
        """Whether to check in this step that examples do not mix, see :data:`CHECKED`."""
        coming = self._measured + 1
        return self.active and (coming in CHECKED or coming % CHECKED[-1] == 0)

    def _look(self, index: int) -> Callable[[Tensor], None]:
        def look(gradient: Tensor | None) -> None:
            if self.active and gradient is not None:
                self.sample.add(index, gradient)
                self._recorder.found(index, gradient)

        return look
