"""Collects what layers contribute, and checks that nothing is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator, sum_of_groups
from cbs.noise_scale.layers.groups import Run, split_examples
from cbs.noise_scale.norms import NormSums
from cbs.noise_scale.passes import ForwardPasses
from cbs.noise_scale.sources.base import Small, gathered

if TYPE_CHECKING:
    from cbs.noise_scale.layers.layer import Layer

BLOCK_BYTES = 2**20
"""Contributions written out at a time; about the size of a core's cache."""

HELD_BYTES = 2**26
"""Contributions to a parameter used several times that are kept written out until its last use was seen."""


ROUNDINGS = 64
"""Rounding errors of the largest gradient that another one may differ by from what it is compared with."""


class Pass:
    """One forward pass.

    Attributes:
        number: of the pass.
        examples: of the pass.
        runs: its groups.
        uses: calls of watched layers, by index of the parameter tensor.
        seen: how many of them were differentiated.
        held: contributions that wait for the others, by index.
    """

    def __init__(self, number: int, examples: int, runs: tuple[Run, ...]) -> None:
        self.number = number
        self.examples = examples
        self.runs = runs
        self.uses: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.held: dict[int, list[Sequence[Contribution]]] = {}


class Recorder:
    """The statistics of one step.

    Args:
        passes: counts forward passes and their examples.
        parameters: the parameter tensors, by index.
        names: theirs.
        watched: indices of those that layers contribute to.
        geometries: what to measure.
        groups: groups per forward pass; ``None`` for one per example.

    Attributes:
        paused: whether watched layers should behave as if they were not.
        checking: whether a backward pass from one example is under way, see :mod:`cbs.noise_scale.layers.separation`.
        compiled: whether a layer was called from compiled code.
        largest: norm of the largest gradient met in a comparison.
        compared: indices whose gradients are compared with the contributions in every backward pass, not once.
    """

    def __init__(
        self,
        passes: ForwardPasses,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        watched: Sequence[int],
        geometries: Sequence[Geometry],
        groups: int | None,
    ) -> None:
        self.paused = False
        self.checking = False
        self.compiled = False
        self.compared: set[int] = set()
        self._passes = passes
        self._parameters = parameters
        self._names = names
        self._geometries = geometries
        self._groups = groups
        self._current = Pass(0, 0, ())
        self._complete: set[int] = set()
        places = range(len(geometries))
        self._by_norm = [
            any(geometries[place].norms_suffice and geometries[place].covers(index) for place in places)
            for index in range(len(parameters))
        ]
        self._by_value = [
            [place for place in places if not geometries[place].norms_suffice and geometries[place].covers(index)]
            for index in range(len(parameters))
        ]
        self._covered = [[index for index in watched if geometry.covers(index)] for geometry in geometries]
        self._norms = NormSums(len(parameters), parameters[0].device)
        self.forget()

    @property
    def examples(self) -> int:
        """Examples of the latest forward pass."""
        return self._passes.examples

    def forget(self) -> None:
        """Start a new step."""
        self._differentiated: dict[int, Pass] = {}
        self._values: list[dict[int, Tensor]] = [{} for _ in self._geometries]
        self._norms.forget()
        self._returned: dict[int, list[Tensor | int]] = {}
        self.largest = 0.0

    def enter(self, layer: Layer) -> Pass:
        """The current forward pass, in which a layer is called."""
        current = self._current
        if current.number != self._passes.number:
            if torch._C._are_functorch_transforms_active():
                raise ConfigError(
                    f"layer {layer.name!r} of a measured model is called under a transform of torch.func (vmap, grad, "
                    "jvp), which cannot be measured; apply the transform to a copy of the model"
                )
            examples = self._passes.examples
            runs = split_examples(examples, examples if self._groups is None else self._groups)
            current = self._current = Pass(self._passes.number, examples, runs)
        if current.number == 0:
            raise ConfigError(
                f"layer {layer.name!r} is called outside the model's forward pass; "
                "give the probe the module that the training loop calls"
            )
        # Recomputed activations are no further use of a parameter.
        if torch._C._current_graph_task_id() == -1:
            uses = current.uses
            for index in layer.watched.values():
                uses[index] = uses.get(index, 0) + 1
        return current

    def take(self, current: Pass, index: int, parts: Sequence[Contribution]) -> Tensor:
        """Record what one call of a layer contributes to one parameter tensor.

        Args:
            current: the forward pass of the call.
            index: of the parameter tensor.
            parts: contributions, one entry per run of groups.

        Returns:
            Their sum, the gradient.
        """
        self._differentiated[current.number] = current
        uses = current.uses.get(index, 1)
        seen = current.seen[index] = current.seen.get(index, 0) + 1
        if seen > uses:
            raise ConfigError(
                f"two backward passes through {self._names[index]!r} after one forward pass: the noise scale cannot "
                "tell them apart; run the model once for each, or add the losses"
            )
        if uses > 1 and (self._by_norm[index] or self._by_value[index]):
            parts = [self._keep(part) for part in parts]
            current.held.setdefault(index, []).append(parts)
            totals = [part.total() for part in parts]
            if seen == uses:
                self._finish(current, index)
        else:
            totals = [self._measure(index, run, part) for run, part in zip(current.runs, parts, strict=True)]
        total = totals[0]
        for other in totals[1:]:
            total = total + other
        if total.dtype is not (dtype := self._parameters[index].dtype):
            total = total.to(dtype)
        # A reference to the gradient would keep autograd from moving it into .grad.
        self._returned.setdefault(index, []).append(total.data_ptr() if index in self._complete else total)
        return total

    def collect(self) -> Small | None:
        """Everything since the last call, which is forgotten; ``None`` if there was no backward pass."""
        if not self._differentiated:
            return None
        runs = [run for current in self._differentiated.values() for run in current.runs]
        for current in self._differentiated.values():
            for index in list(current.held):
                self._finish(current, index)
        groups = sum(run.groups for run in runs)
        examples = sum(current.examples for current in self._differentiated.values())
        statistics = self._statistics()
        for entries in statistics:
            torch._foreach_mul_(entries, float(examples))
        small = Small(statistics=statistics, groups=groups, size=examples / groups, examples=examples)
        self.forget()
        return small

    def check(self, index: int, gradient: Tensor) -> None:
        """Compare the gradient that a backward pass found for a parameter tensor with what layers contributed to it.

        Raises:
            ConfigError: if they differ, because the parameter is used elsewhere, too, or a hook changes its gradient.
        """
        if self.checking:
            return
        returned = self._returned.pop(index, [])
        if len(returned) == 1 and index in self._complete and returned[0] == gradient.data_ptr():
            return
        tensors = [tensor for tensor in returned if isinstance(tensor, Tensor)]
        if len(returned) > 1 and not tensors:
            return
        if not bool(gradient.isfinite().all()):
            return
        if not tensors or not self._agree(gradient, tensors):
            raise ConfigError(
                f"the gradient of {self._names[index]!r} is not what its layer contributes to it: it is used outside "
                "the layer, the layer mixes examples or draws random numbers, or a hook changes its gradient; use the "
                "source 'accumulation'"
            )
        if index not in self.compared:
            self._complete.add(index)

    def _agree(self, gradient: Tensor, tensors: Sequence[Tensor]) -> bool:
        """Whether a gradient is the sum of some tensors, up to rounding.

        A gradient that is zero but for rounding, as that of a bias before a normalisation, has no digits to compare;
        what matters is that it is small beside other gradients.
        """
        rounding = torch.finfo(gradient.dtype).eps
        stacked = torch.stack(list(tensors)).to(accumulator(gradient.dtype))
        difference = torch.linalg.vector_norm(gradient - stacked.sum(0)).item()
        size = torch.linalg.vector_norm(stacked).item()
        self.largest = max(self.largest, size)
        return difference <= rounding**0.5 * size + ROUNDINGS * rounding * self.largest

    def _keep(self, part: Contribution) -> Contribution:
        """A form that can wait until the last use of a parameter was seen."""
        if isinstance(part, Dense) or (part.groups > 2 and part.groups * part.nbytes > HELD_BYTES):
            return part
        return Dense(part.dense(0, part.groups))

    def _finish(self, current: Pass, index: int) -> None:
        """Measure a parameter used several times."""
        for run, *calls in zip(current.runs, *current.held.pop(index), strict=True):
            square = None if self._by_value[index] else _square_of_sum(calls)
            if square is not None:
                self._norms.add_square(index, 1.0 / run.size, square)
                continue
            for start, stop in _blocks(run.groups, max(part.nbytes for part in calls)):
                values = calls[0].dense(start, stop)
                for part in calls[1:]:
                    values = values + part.dense(start, stop)
                self._add(index, run, values)

    def _measure(self, index: int, run: Run, part: Contribution) -> Tensor:
        """Measure a parameter used once; returns the sum of the contributions."""
        if not self._by_value[index]:
            if not self._by_norm[index]:
                return part.total()
            square = part.squared_norm()
            if square is not None:
                self._norms.add_square(index, 1.0 / run.size, square)
                return part.total()
        blocks = _blocks(run.groups, part.nbytes)
        if isinstance(part, Dense) and len(blocks) == 1:
            self._add(index, run, part.values)
            return part.total()
        total = None
        for start, stop in blocks:
            values = part.dense(start, stop)
            self._add(index, run, values)
            if total is None:
                total = sum_of_groups(values)
            else:
                total.add_(values[0] if stop - start == 1 else sum_of_groups(values))
        return total  # type: ignore[return-value]

    def _add(self, index: int, run: Run, values: Tensor) -> None:
        """Add the statistics of some groups of a run."""
        weight = 1.0 / run.size
        if self._by_norm[index]:
            norm = torch.linalg.vector_norm(values, dtype=accumulator(values.dtype))
            self._norms.add_norm(index, weight, norm)
        for place in self._by_value[index]:
            value = self._geometries[place].statistic(index, values).mul_(weight)
            table = self._values[place]
            table[index] = table[index].add_(value) if index in table else value

    def _statistics(self) -> list[list[Tensor]]:
        statistics = []
        for geometry, covered, table in zip(self._geometries, self._covered, self._values, strict=True):
            if geometry.norms_suffice:
                squares = self._norms.total().unbind()
                statistics.append([squares[index] for index in covered])
            else:
                statistics.append(gathered(geometry, table, self._parameters, covered))
        return statistics


def _blocks(groups: int, nbytes: int) -> Sequence[tuple[int, int]]:
    """Blocks of groups whose contributions fit the cache."""
    step = max(1, BLOCK_BYTES // nbytes)
    if groups <= step:
        return ((0, groups),)
    return [(start, min(start + step, groups)) for start in range(0, groups, step)]


def _square_of_sum(calls: Sequence[Contribution]) -> Tensor | None:
    """Sum over groups of the squared norm of a sum of contributions, from inner products of each two of them."""
    total = None
    for place, call in enumerate(calls):
        for other in calls[place:]:
            product = call.inner(other)
            product = other.inner(call) if product is None else product
            if product is None:
                return None
            product = product if call is other else 2 * product
            total = product if total is None else total + product
    return total
