"""Collects what layers contribute, and checks that nothing is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator, sum_of_groups
from cbs.noise_scale.layers.groups import Run, split_examples
from cbs.noise_scale.passes import ForwardPasses
from cbs.noise_scale.sources.base import Small

BLOCK_BYTES = 2**20
"""Contributions written out at a time; about the size of a core's cache."""

HELD_BYTES = 2**26
"""Contributions to a parameter used several times that are kept written out until its last use was seen."""

Parts = Sequence[tuple[Run, Contribution]]
"""Contributions to one parameter tensor, run by run."""


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
        self.held: dict[int, list[Parts]] = {}


class Recorder:
    """The statistics of one step.

    Args:
        passes: counts forward passes and their examples.
        parameters: the parameter tensors, by index.
        names: theirs.
        geometries: what to measure.
        groups: groups per forward pass; ``None`` for one per example.

    Attributes:
        paused: whether watched layers should behave as if they were not.
    """

    def __init__(
        self,
        passes: ForwardPasses,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        geometries: Sequence[Geometry],
        groups: int | None,
    ) -> None:
        self.paused = False
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
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self._differentiated: dict[int, Pass] = {}
        self._values: list[dict[int, Tensor]] = [{} for _ in self._geometries]
        self._norms: list[tuple[int, float, Tensor]] = []
        self._squares: list[tuple[int, float, Tensor]] = []
        self._returned: dict[int, list[Tensor | int]] = {}

    def enter(self, indices: Sequence[int], layer: str) -> Pass:
        """The current forward pass, in which a layer that uses these parameters is called."""
        current = self._current
        if current.number != self._passes.number:
            examples = self._passes.examples
            runs = split_examples(examples, examples if self._groups is None else self._groups)
            current = self._current = Pass(self._passes.number, examples, runs)
        if current.number == 0:
            raise ConfigError(
                f"layer {layer!r} is called outside the model's forward pass; "
                "give the probe the module that the training loop calls"
            )
        if torch._C._current_graph_task_id() == -1:
            for index in indices:
                current.uses[index] = current.uses.get(index, 0) + 1
        return current

    def take(self, current: Pass, index: int, parts: Parts) -> Tensor:
        """Record the contributions of one call to one parameter tensor; returns their sum."""
        self._differentiated[current.number] = current
        uses = current.uses.get(index, 1)
        seen = current.seen[index] = current.seen.get(index, 0) + 1
        if seen > uses:
            raise ConfigError(
                f"two backward passes through {self._names[index]!r} after one forward pass: the noise scale cannot "
                "tell them apart; run the model once for each, or add the losses"
            )
        if uses == 1:
            totals = [self._measure(index, run, part) for run, part in parts]
        else:
            parts = [(run, self._keep(part)) for run, part in parts]
            totals = [part.total() for _, part in parts]
            current.held.setdefault(index, []).append(parts)
            if seen == uses:
                self._finish(current, index)
        total = totals[0]
        for other in totals[1:]:
            total = total + other
        checked = index in self._complete
        self._returned.setdefault(index, []).append(total.data_ptr() if checked else total)
        return total

    def collect(self) -> Small | None:
        """Everything since the last call, which is forgotten; ``None`` if there was no backward pass."""
        if not self._differentiated:
            return None
        runs = [run for current in self._differentiated.values() for run in current.runs]
        for current in self._differentiated.values():
            for index in list(current.held):
                self._finish(current, index)
        small = Small(
            statistics=self._statistics(),
            groups=sum(run.groups for run in runs),
            inverse_sizes=sum(run.groups / run.size for run in runs),
            examples=sum(current.examples for current in self._differentiated.values()),
        )
        self.forget()
        return small
