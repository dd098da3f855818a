"""Collects what layers contribute to the gradients of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.grouping import Cells
from cbs.noise_scale.layers.completeness import Completeness
from cbs.noise_scale.layers.contribution import Contribution, Dense, sum_of_groups
from cbs.noise_scale.layers.forward_pass import Pass
from cbs.noise_scale.layers.separation import Separation
from cbs.noise_scale.passes import TWO_BACKWARD, TWO_FORWARD, ForwardPasses
from cbs.noise_scale.small_batch import GroupSums, Small

BLOCK_BYTES = 2**20
"""Contributions written out at a time; about the size of a core's cache."""

HELD_BYTES = 2**26
"""Contributions to a parameter used several times that are kept written out until its last use was seen."""


class Recorder:
    """The contributions of one step.

    What goes wrong inside a pass of somebody else's training loop is kept, and raised by :meth:`collect`; the loop has
    the gradients it would have had.

    Args:
        passes: counts forward passes and their examples.
        separation: of the rows of examples.
        sums: where the contributions of parts of the batch are added up.
        within: where those of the cells of a part are.
        parameters: the parameter tensors, by index.
        names: theirs.
        groups: least number of parts of a forward pass; ``None`` for one per example, or group of examples.

    Attributes:
        failure: why this step cannot be measured; ``None`` if it can.
    """

    def __init__(
        self,
        passes: ForwardPasses,
        separation: Separation,
        sums: GroupSums,
        within: GroupSums,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        groups: int | None,
    ) -> None:
        self.separation = separation
        self._completeness = Completeness(names)
        self._passes = passes
        self._sums, self._within = sums, within
        self._parameters = parameters
        self._groups = groups
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self.failure: ConfigError | None = None
        self._current = Pass(0, Cells(0))
        self._differentiated: dict[int, Pass] = {}
        self._open: dict[int, int] = {}
        self._sums.forget()
        self._within.forget()
        self._completeness.forget()

    def fail(self, why: str) -> None:
        """Give up this step; :meth:`collect` raises the first error."""
        self.failure = self.failure or ConfigError(why)

    def enter(self, layer: str) -> Pass | None:
        """The current forward pass, in which a layer is called; ``None`` if it cannot be measured."""
        passes, current = self._passes, self._current
        if self.separation.rehearsing:
            return self._new_pass(0)
        if current.number == passes.number > 0:
            return current
        if torch._C._are_functorch_transforms_active():
            self.fail(
                f"layer {layer!r} of a measured model is called under a transform of torch.func (vmap, grad, jvp), "
                "which cannot be measured; apply the transform to a copy of the model"
            )
            return None
        if passes.number == 0:
            self.fail(
                f"layer {layer!r} is called outside the model's forward pass; "
                "give the noise scale the module that the training loop calls"
            )
            return None
        if passes.examples < 1:
            self.fail("a forward pass has no examples; leave empty batches out")
            return None
        if passes.wrong is not None:
            self.fail(str(passes.wrong))
            return None
        if passes.shared and current.number and current.number not in self._differentiated:
            current.number = passes.number
        else:
            self._current = self._new_pass(passes.number)
        return self._current

    def _new_pass(self, number: int) -> Pass:
        passes = self._passes
        cells = Cells(passes.examples, passes.members, passes.order, self._groups)
        return Pass(number, cells, plain=self.failure is not None and number > 0)

    def take(self, current: Pass, index: int, part: Contribution) -> Tensor:
        """Record what one call of a layer contributes to one parameter tensor.

        Args:
            current: the forward pass of the call.
            index: of the parameter tensor.
            part: its contributions.

        Returns:
            Their sum, the gradient.
        """
        self._differentiated[current.number] = current
        if self._open.setdefault(index, current.number) != current.number:
            self.fail(TWO_FORWARD)
        uses = current.uses.get(index, 1)
        seen = current.seen[index] = current.seen.get(index, 0) + 1
        if seen > uses:
            self.fail(TWO_BACKWARD)
            total = part.total()
        elif uses > 1 and self._sums.wanted[index]:
            part = self._keep(part)
            current.held.setdefault(index, []).append(part)
            total = part.total()
            if seen == uses:
                self._measure(index, current, current.held.pop(index))
        else:
            measured = self._measure(index, current, [part]) if self._sums.wanted[index] else None
            total = part.total() if measured is None else measured
        if total.dtype is not (dtype := self._parameters[index].dtype):
            total = total.to(dtype)
        self._completeness.returned(index, total)
        return total

    def found(self, index: int, gradient: Tensor) -> None:
        """Compare the gradient that a backward pass found for a parameter tensor with what its layers contributed."""
        self._open.pop(index, None)
        if self.failure is None and not self.separation.broken:
            self.failure = self._completeness.check(index, gradient)

    def collect(self) -> Small | None:
        """Everything since the last call, which is forgotten; ``None`` if there was no backward pass.

        Raises:
            ConfigError: if something went wrong inside a pass, or examples mix.
        """
        if self.separation.broken:
            self.fail(f"{self.separation.broken}; use the source 'accumulation'")
        if self.failure is None and not self._differentiated:
            return None
        try:
            if self.failure is not None:
                raise self.failure
            self.separation.verify()
            passes = self._differentiated.values()
            for current in passes:
                for index, parts in current.held.items():
                    self._measure(index, current, parts)
            cells, examples = (sum(getattr(each, of) for each in passes) for of in ("groups", "examples"))
            small = self._sums.small(sum(each.groups // each.cells.of_part for each in passes), examples)
            if self._passes.members > 1:
                small.within = self._within.small(cells, examples)
            return small
        finally:
            self.forget()

    def _keep(self, part: Contribution) -> Contribution:
        """A form that can wait until the last use of a parameter was seen."""
        if isinstance(part, Dense) or (part.groups > 2 and part.groups * part.nbytes > HELD_BYTES):
            return part
        return Dense(part.dense(0, part.groups))

    def _measure(self, index: int, current: Pass, calls: Sequence[Contribution]) -> Tensor | None:
        """Measure all uses of a parameter; returns the sum over groups of a single use where that is written out."""
        of_part = current.cells.of_part
        if of_part > 1:
            self._add(self._within, index, current.size, calls)
            calls = [part.merged(of_part) for part in calls]
        return self._add(self._sums, index, current.size * of_part, calls)

    def _add(self, sums: GroupSums, index: int, size: int, calls: Sequence[Contribution]) -> Tensor | None:
        if len(calls) == 1 and sums.norms_suffice(index) and (square := calls[0].square()) is not None:
            sums.add_square(index, size, square.clamp_min(0))
            return None
        total, step = None, max(1, BLOCK_BYTES // max(part.nbytes for part in calls))
        for start in range(0, calls[0].groups, step):
            stop = min(start + step, calls[0].groups)
            values = calls[0].dense(start, stop)
            for part in calls[1:]:
                values = values + part.dense(start, stop)
            sums.add(index, size, values)
            if len(calls) == 1:
                own = sum_of_groups(values)
                total = own if total is None else total.add_(own)
        return total
