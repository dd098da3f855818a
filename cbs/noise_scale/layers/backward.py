"""Sources that look into the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cbs.noise_scale.distributed import initialized
from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.plan import plan
from cbs.noise_scale.layers.recorder import Recorder
from cbs.noise_scale.layers.separation import FirstOutput
from cbs.noise_scale.passes import CountExamples, ForwardPasses, first_dimension
from cbs.noise_scale.sources.base import Small


class InsideBackward:
    """Splits every backward pass into groups of examples, exactly, layer by layer.

    Args:
        model: what is called in the training loop.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: groups per forward pass; ``None`` for one per example.
        count: number of examples of a forward pass.
    """

    micro_batches = 1
    over_ranks = False

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        geometries: Sequence[Geometry],
        *,
        groups: int | None,
        count: CountExamples = first_dimension,
    ) -> None:
        self._parameters = parameters
        self._passes = ForwardPasses(model, count)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._names = [names[id(parameter)] for parameter in parameters]
        self._model = model
        self._geometries = geometries
        self._groups = groups
        self.active = True
        self._layers: list[Layer] = []
        self._handles: list[RemovableHandle] = []

    def watched(self, index: int) -> bool:
        return True

    def attach(self) -> None:
        watched = [index for index in range(len(self._parameters)) if self.watched(index)]
        self._recorder = Recorder(self._passes, self._parameters, self._names, watched, self._geometries, self._groups)
        self._layers = plan(self._model, {id(self._parameters[index]): index for index in watched}, self._recorder)
        for layer in self._layers:
            layer.install(lambda: self.active)
        # Where ranks communicate, gradients are wanted one by one, as early as possible.
        if not initialized():
            copied = {index for layer in self._layers if layer.copied for index in layer.watched.values()}
            self._recorder.copied = sorted(copied)
        self._passes.attach()
        self._handles = [self._parameters[index].register_hook(self._check(index)) for index in watched]
        self._handles.append(FirstOutput(self._model, self._recorder, [self._parameters[i] for i in watched]).handle)

    def detach(self) -> None:
        self._passes.detach()
        for layer in self._layers:
            layer.remove()
        for handle in self._handles:
            handle.remove()
        self._layers, self._handles = [], []

    def collect(self) -> Small | None:
        return self._recorder.collect()

    def _check(self, index: int) -> Callable[[Tensor], None]:
        def check(gradient: Tensor | None) -> None:
            if self.active and gradient is not None and not self._recorder.checking:
                self._recorder.completeness.check(index, gradient)

        return check
