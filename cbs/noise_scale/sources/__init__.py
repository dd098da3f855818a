"""Sources of the small-batch side of a noise scale: one file each, found by name."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError
from cbs.noise_scale.boundary import is_sending
from cbs.noise_scale.cut import asleep
from cbs.noise_scale.geometries import Geometry
from cbs.noise_scale.gradient_sample import GradientSample
from cbs.noise_scale.grouping import Grouping
from cbs.noise_scale.passes import NOT_CALLED, SEEN, CountExamples, Pass, Weights, first_dimension, weights_of
from cbs.noise_scale.small_batch import GroupSums, Small
from cbs.registry import Registry

# Numbers of the measured steps, beside the multiples of the last, in which the assumptions are checked: whether
# examples influence each other may depend on the batch and on what the model has learnt.
CHECKED = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

# Squared relative spread of the weights of examples over their number, from which on the first order is not enough
ROUGH = 0.05


class Source(ABC):
    """Base class of objects that watch the passes of a model after :meth:`attach`. A source never changes a gradient.

    Args:
        model, parameters, geometries, count, grouping, weights: those of the probe.
        groups: number of groups wanted, per step or per backward pass.

    Attributes:
        micro_batches: least number of micro-batches into which a training loop should split a step.
        backward_passes: number of extra backward passes in a measured step, according to the latest one.
        uneven: why constants of the loss, such as unequal weights of examples, make the noise scale inexact; empty if
            none do.
        rough: why it is inexact with the weights that were passed; empty if it is not.
        active: whether this step is watched, else the model runs as without a source; changed between steps only.
        sample: entries of the gradients that the backward passes computed.
        ranks: process groups whose ranks average their gradients, where this cannot be read off the model.
        sums: type of the sums over the groups of a step.
        geometries: geometries in which the small-batch side is measured.
        latest: the latest forward pass with gradients enabled; one without examples before the first.
        shared: whether all passes under one backward pass are over the same examples, which a user's ``count`` implies.
    """

    micro_batches = 1
    backward_passes = 0
    uneven, rough = "", ""
    ranks: Sequence[Any] = ()
    sums: type[GroupSums] = GroupSums

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        geometries: Sequence[Geometry],
        *,
        groups: int = 2,
        count: CountExamples = first_dimension,
        grouping: Grouping | None = None,
        weights: Weights | None = None,
    ) -> None:
        self.active = True
        self.sample = GradientSample(parameters)
        self.latest = Pass()
        self.shared = count is not first_dimension
        self._model, self._parameters, self.geometries = model, parameters, geometries
        self._groups = groups
        self._count, self._grouping, self._weights = count, grouping or Grouping(), weights
        self._sizes: set[int] = set()
        self._members, self._outputs = 0, 0
        self._unequal, self._other_rows, self._steps = "", "", 0
        self._given: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._failure: ConfigError | None = None

    @property
    def caveat(self) -> str:
        """What could not be checked; empty if everything was."""
        return "; ".join(filter(None, (self._unequal, self._other_rows, self.rough)))

    def end_step(self) -> None:
        """End the step: later passes belong to the next one."""
        if len(self._sizes) > 1 and self._weights is None:
            self._unequal = (
                f"micro-batches of {min(self._sizes)} to {max(self._sizes)} examples in a step: correct only if the "
                "loss of each is weighted by its number of examples, not divided by the number of micro-batches"
            )
        if self._given:
            given = torch.cat(self._given)
            spread = float(given.var() / given.mean() ** 2) / len(given) if len(given) > 1 else 0.0
            if spread > ROUGH:
                self.rough = (
                    f"the weights of the {len(given)} examples of a step differ so much that a noise scale near the "
                    f"batch size is known to about {2 * spread:.0%} only"
                )
            self._given = []
        self._sizes.clear()
        self._members = 0

    def _due(self) -> bool:
        """Return whether the assumptions are checked in this step, see :data:`CHECKED`."""
        coming = self._steps + 1
        return coming in CHECKED or coming % CHECKED[-1] == 0

    def attach(self) -> None:
        """Start watching.

        Raises:
            ConfigError: if the source does not support the model; the message says why and what to use.
        """
        self._sums = self.sums(self._parameters, self.geometries)
        self._handles = [
            *self._watch(),
            self._model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True),
            self._model.register_forward_hook(self._end),
        ]
        self._forget()

    def detach(self) -> None:
        """Stop watching and leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def differentiate(self, loss: Tensor) -> None:  # noqa: B027 - most sources do not use it
        """Treat a loss as the end of the current forward pass, before its backward pass; does nothing by default."""

    def __reduce__(self) -> Any:
        return asleep, (type(self),)

    def collect(self) -> Small | None:
        """Return the small-batch side of passes since the last call and forget it; ``None`` without a backward pass.

        Raises:
            ConfigError: if the passes of the step cannot be measured. The gradients of training are unaffected.
        """
        try:
            if self._failure is not None:
                raise self._failure
            return self._measured()
        finally:
            self._forget()

    @abstractmethod
    def _measured(self) -> Small | None:
        """Return the small-batch side of the step; ``None`` without a backward pass."""

    @abstractmethod
    def _take(self, index: int, gradient: Tensor) -> None:
        """Receive the gradient that a backward pass of training computed for a parameter tensor."""

    def _forget(self) -> None:
        """Start a new step."""
        self._failure = None
        self._passes: dict[Any, Pass] = {}
        self._weighed: set[int] = set()
        self._sums.forget()

    def _fail(self, why: str | ConfigError) -> None:
        """Give up this step; errors inside another program's training loop are raised after its passes."""
        self._failure = self._failure or (ConfigError(why) if isinstance(why, str) else why)

    def _watch(self) -> list[RemovableHandle]:
        """Register a hook on every parameter tensor and return the handles."""
        handles = []
        for index, tensor in enumerate(self._parameters):
            trained = tensor.requires_grad  # a hook can be registered only while this is true, but stays
            handles.append(tensor.requires_grad_().register_hook(self._hook(index)))
            tensor.requires_grad_(trained)
        return handles

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def look(gradient: Tensor | None) -> None:
            if not self.active or gradient is None or is_sending():
                return
            if gradient.layout is not torch.strided:
                self._fail("a gradient is sparse, and cannot be measured; build the module with sparse=False")
                return
            self.sample.add(index, gradient)
            self._take(index, gradient)

        return look

    def _begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.active and torch.is_grad_enabled():
            examples, wrong, weights = self._count(args, kwargs), None, None
            try:
                units = self._grouping.of(examples, args, kwargs)
                weights = weights_of(self._weights, examples, args, kwargs)
            except ConfigError as error:
                units, wrong = torch.arange(examples)[:, None], error
            leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            inputs = [(weakref.ref(leaf), 0 if leaf.is_inference() else leaf._version) for leaf in leaves]
            self.latest = Pass(self.latest.number + 1, units, wrong, {*_rows(leaves)}, inputs, weights)

    def _end(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self.active and torch.is_grad_enabled():
            self._outputs = next(iter(_rows(output)), 0)

    def _add_pass(self, one: Pass) -> bool:
        """Count a pass among those of the step, as its gradient arrives; return whether it can be measured."""
        examples, members = one.units.numel(), one.units.shape[1]
        same = tuple((id(held), version) for held, version in one.inputs) or one.number
        if one.wrong is not None:
            self._fail(one.wrong)
        elif self._passes.setdefault(same, one).number != one.number and not self.shared:
            self._fail(SEEN)
        elif examples < 1:
            self._fail("a forward pass has no examples; skip empty batches" if one.number else NOT_CALLED)
        elif self._members not in (0, members):
            self._fail(
                f"groups of {self._members} and of {members} examples in one step; all groups must have the same size"
            )
        elif not self.shared and self._outputs != examples and self._outputs in one.rows:
            self._other_rows = (
                f"{examples} examples were counted, the rows of the model's first input, but another input and the "
                f"output have {self._outputs} rows: if those are the examples, pass count="
            )
        self._members = members
        self._sizes.add(examples)
        if one.weights is not None and one.number not in self._weighed:
            self._given.append(one.weights)
            self._weighed.add(one.number)
        return self._failure is None


def _rows(values: Any) -> list[int]:
    """Return the first dimension of every tensor in some arguments or an output."""
    return [leaf.shape[0] for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.ndim]


SOURCES: Registry[Callable[..., Source]] = Registry("noise-scale source", "cbs.noise_scale.sources", makes=Source)
__all__ = ["SOURCES", "Small", "Source"]
