"""Micro-batches under gradient accumulation, without a copy of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.base import Geometry, Statistics, scale_
from cbs.noise_scale.gradient_sample import GradientSample
from cbs.noise_scale.norms import NormSums
from cbs.noise_scale.passes import CountExamples, ForwardPasses, first_dimension
from cbs.noise_scale.small_batch import Small, gathered
from cbs.noise_scale.sources import SOURCES


@SOURCES.register("accumulation")
class Accumulation:
    """Every backward pass is one group.

    A tensor hook on each parameter sees the gradient of a backward pass before it is added to ``.grad``. Works with any
    model, compiled ones too, and costs one read of the gradient per micro-batch. One micro-batch per step is not
    enough: there is then one group, and nothing to compare.

    Args:
        model: what is called in the training loop.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: micro-batches to ask of a training loop that is free to choose.
        count: number of examples of a forward pass.
    """

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
        self.micro_batches = groups
        self.active = True
        self._parameters = parameters
        self._geometries = geometries
        self.sample = GradientSample(parameters)
        self.caveat = ""
        self._passes = ForwardPasses(model, count)
        self._handles: list[RemovableHandle] = []
        self._norms = NormSums(len(parameters), parameters[0].device)
        self._latest = 0
        self._forget()

    def watched(self, index: int) -> bool:
        return True

    def attach(self) -> None:
        self._passes.attach()
        self._handles = [parameter.register_hook(self._hook(index)) for index, parameter in enumerate(self._parameters)]

    def detach(self) -> None:
        self._passes.detach()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def collect(self) -> Small | None:
        failure, self._latest = self._failure, self._passes.number
        if self._sizes:
            failure = failure or self._passes.mismatch()
        if failure is not None or not self._sizes:
            self._forget()
            if failure is not None:
                raise failure
            return None
        examples = sum(self._sizes.values())
        small = Small(
            statistics=[
                self._of(geometry, table) for geometry, table in zip(self._geometries, self._statistics, strict=True)
            ],
            groups=len(self._sizes),
            size=examples / len(self._sizes),
            examples=examples,
        )
        for statistics in small.statistics:
            scale_(statistics, float(examples))
        self._forget()
        return small

    def _forget(self) -> None:
        self._failure: ConfigError | None = None
        self._sizes: dict[int, int] = {}
        self._statistics: list[dict[int, Tensor]] = [{} for _ in self._geometries]
        self._seen: dict[int, int] = {}
        self._norms.forget()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        covering = [(geometry, place) for place, geometry in enumerate(self._geometries) if geometry.covers(index)]
        by_norm = any(geometry.norms_suffice for geometry, _ in covering)
        by_value = [(geometry, place) for geometry, place in covering if not geometry.norms_suffice]

        def take(gradient: Tensor) -> None:
            if not self.active:
                return
            if gradient.layout is not torch.strided:
                self._failure = ConfigError(
                    "a gradient is sparse, and cannot be measured; build the module with sparse=False"
                )
                return
            self.sample.add(index, gradient)
            number, examples = self._passes.number, self._passes.examples
            if self._seen.get(index) == number:
                self._failure = ConfigError(
                    "two backward passes after one forward pass: the noise scale cannot tell them apart; "
                    "run the model once for each, or add the losses"
                )
            if number > self._latest + 1 and not self._passes.shared:
                self._failure = ConfigError(
                    "two forward passes before one backward pass: the noise scale cannot tell whether they hold the "
                    "same examples; make them one, or say with count= how many examples the backward pass has; "
                    "evaluate under torch.no_grad()"
                )
            self._latest = number
            self._seen[index] = number
            self._sizes[number] = examples
            if by_norm:
                dtype = torch.promote_types(gradient.dtype, torch.float32)
                self._norms.add_norm(index, 1.0 / examples, torch.linalg.vector_norm(gradient.detach(), dtype=dtype))
            for geometry, place in by_value:
                value = geometry.statistic(index, gradient.detach()[None]).mul_(1.0 / examples)
                table = self._statistics[place]
                table[index] = table[index].add_(value) if index in table else value

        return take

    def _of(self, geometry: Geometry, table: dict[int, Tensor]) -> Statistics:
        indices = range(len(self._parameters))
        if geometry.norms_suffice:
            return self._norms.total([index for index in indices if geometry.covers(index)])
        return gathered(geometry, table, self._parameters, indices)
