"""Sources that look into the backward pass: groups of examples, down to single ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from cbs.noise_scale.geometries.l2 import L2
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.plan import plan
from cbs.noise_scale.layers.recorder import Recorder
from cbs.noise_scale.layers.separation import Separation
from cbs.noise_scale.small_batch import GroupSums, Small
from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.base import Source

CHECKED = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Measured steps in which it is checked that examples do not mix, and every multiple of the last: what they do to each
other may depend on the batch and on what the model has learnt."""


class InsideBackward(Source):
    """Splits every backward pass into groups of examples, exactly, layer by layer.

    The groups of a forward pass are equally large: where the number wanted does not divide its examples, they are the
    next larger number that does, and at most one per example.

    Attributes:
        single: whether every example is a group, whatever ``groups`` says.
    """

    single = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._names = [names[id(parameter)] for parameter in self._parameters]
        self._separation = Separation(self._model, self._passes, self._due)
        self._measured = 0
        self._layers: list[Layer] = []

    def _watch(self) -> list[RemovableHandle]:
        groups = None if self.single else self._groups
        indices = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        within = GroupSums(self._parameters, [L2()])
        self._recorder = Recorder(
            self._passes, self._separation, self._sums, within, self._parameters, self._names, groups
        )
        self._layers = plan(self._model, indices, self._recorder)
        for layer in self._layers:
            layer.install(lambda: self.active)
        self._separation.attach()
        return super()._watch()

    def detach(self) -> None:
        super().detach()
        self._separation.detach()
        for layer in self._layers:
            layer.remove()
        self._layers = []

    def collect(self) -> Small | None:
        found = self._recorder.collect()
        self._measured += found is not None
        return found

    @property
    def caveat(self) -> str:
        why_not = self._separation.why_not
        unchecked = f"whether examples mix was not checked: {why_not}; see NoiseScaleMeter.check" if why_not else ""
        return "; ".join(filter(None, (unchecked, self._separation.caveat, super().caveat)))

    def _due(self) -> bool:
        """Whether to check in this step that examples do not mix, see :data:`CHECKED`."""
        coming = self._measured + 1
        return self.active and (coming in CHECKED or coming % CHECKED[-1] == 0)

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def look(gradient: Tensor | None) -> None:
            if self.active and gradient is not None:
                self.sample.add(index, gradient)
                self._recorder.found(index, gradient)

        return look


@SOURCES.register("split")
class Split(InsideBackward):
    """The batch of every forward pass is split into a few groups within the backward pass.

    Needs no second backward pass: the gradient of a parameter tensor is made group by group and added up.
    """


@SOURCES.register("per_example")
class PerExample(InsideBackward):
    """Gradients of single examples within the backward pass (Gray et al. 2024, arXiv 2411.00999, section 3).

    Of all group sizes, one example gives the estimate of least variance.
    """

    single = True
