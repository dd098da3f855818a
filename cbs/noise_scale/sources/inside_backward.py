"""Sources that split a backward pass into groups of examples, down to single examples."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError, reason
from cbs.noise_scale.boundary import bounded, differentiable, is_sending, sending, tensors_of
from cbs.noise_scale.coupling import Coupling
from cbs.noise_scale.cut import Call, Cut, has_rows, in_training, only
from cbs.noise_scale.grouping import Cells
from cbs.noise_scale.passes import NOT_CALLED, TWO_BACKWARD, TWO_FORWARD, Pass
from cbs.noise_scale.replay import Replay
from cbs.noise_scale.separation import Separation
from cbs.noise_scale.shared_by_batch import SharedInputs
from cbs.noise_scale.small_batch import CellSums, Small
from cbs.noise_scale.sources import SOURCES, Source

IDLE = 0.5  # Share of examples without a gradient above which a caveat is given

TWICE = "the model is differentiated twice (create_graph=True), which only the source 'accumulation' can watch"
ELSEWHERE = (
    "a gradient reaches {!r} in another way than through the output of the model that the noise scale measures, for "
    "example by a penalty on the weights in the loss, a layer called by itself or a hook; use the source 'accumulation'"
)
NO_CUT = (
    "the loss is computed inside the model, not from outputs of its modules that have examples in the first dimension; "
    "return such outputs, pass count= if the first input does not have a row for every example, or use the source "
    "'accumulation'"
)
COMPILED = "compiled code calls the model and runs a backward pass only once; use the source 'accumulation'"
CHANGES = "the forward pass changes parameters in place"
DRAWN = (
    "the model draws random numbers of shape {} for all examples of a batch together, such as whether a layer is left "
    "out: what they do to the gradient counts as signal, so the noise scale is too small; draw them for every example"
)
TRANSFORM = (
    "the model is called under a transform of torch.func (vmap, grad, jvp), which cannot be measured; apply the "
    "transform to a copy of the model"
)


@dataclass
class Seen:
    """State of the step in progress.

    Attributes:
        replay: the latest forward pass of the step, so that it can be repeated.
        done: numbers of the passes that were differentiated.
        task: autograd's id of the latest backward pass.
        reached: whether a gradient of training reached a parameter.
    """

    replay: Replay | None = None
    done: set[int] = field(default_factory=set)
    task: int | None = None
    reached: bool = False


class InsideBackward(Source):
    """Splits every backward pass into groups of examples, exactly, whatever the model computes.

    Before the gradients of a model's output propagate into the model, an auxiliary backward pass runs for every group
    but the last, with the gradients of all other examples set to zero. The gradient of the last group is the gradient
    of training minus those of the others. Training itself runs exactly as without a noise scale.

    In some steps (:data:`~cbs.noise_scale.sources.CHECKED`) the last group gets a pass of its own, too, and all
    groups have to add up to the gradient of training. In these steps every row of the output has to depend on one
    example only (:class:`~cbs.noise_scale.separation.Separation`), and the loss must not couple examples
    (:class:`~cbs.noise_scale.coupling.Coupling`).

    Attributes:
        single: whether every example is a group, whatever ``groups`` says.
        seen: state of the step in progress.
    """

    single, sums = False, CellSums
    _sums: CellSums

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._names = [names[id(parameter)] for parameter in self._parameters]
        self._separation, self._inputs = Separation(), SharedInputs()
        self._coupling = Coupling(self._parameters, weights_known=callable(self._weights))
        self.backward_passes = self._groups - 1
        self._has_rows, self._compiled, self._draws = True, False, ""

    @property
    def caveat(self) -> str:
        separation = self._separation
        unchecked = {"examples mix": separation.why_not, "the loss couples examples": self._coupling.why_not}
        caveats = [
            f"not checked whether {what}: {why_not}; see NoiseScaleMeter.check"
            for what, why_not in unchecked.items()
            if why_not
        ]
        if self._draws:
            caveats.append(DRAWN.format(self._draws))
        idle, examples = self._coupling.idle
        if idle > IDLE * examples:
            caveats.append(
                f"the loss has no gradient for {idle} of {examples} examples: where others in the batch decide which, "
                "as in hard-example mining, this is not the noise of single examples; see NoiseScaleMeter.check"
            )
        lag, correlation = separation.copies
        if lag:
            where = {1: "next to them", -1: "in reverse order"}.get(lag, f"{lag} places on")
            caveats.append(
                f"examples resemble those {where} (correlation {correlation:.2f}), as in a sorted batch, augmentations "
                "of one image or answers to one prompt: shuffle, or pass groups= to say which belong together"
            )
        return "; ".join(filter(None, (*caveats, super().caveat)))

    def detach(self) -> None:
        super().detach()
        self._cut.detach()
        self._forget()

    def _measured(self) -> Small | None:
        if not self.seen.reached:
            return None
        if self._due():
            eps = max(torch.finfo(parameter.dtype).eps for parameter in self._parameters)  # may have been cast since
            wrong = self._sums.wrong(max(eps, self._cut.coarsest))
            if wrong is not None:
                raise ConfigError(ELSEWHERE.format(self._names[wrong]))
            replay, units = self.seen.replay, self.latest.units
            if replay is not None and replay.changed(trained=False):
                self._separation.why_not = CHANGES
            elif replay is not None and len(units) > 1:
                self._separation.verify(self._run_again, replay.inputs(units.numel()), units)
            self.uneven = "; ".join(filter(None, (self._coupling.uneven, self._inputs.told())))
            self._coupling.verify()
        self._steps += not self._separation.undecided
        return self._sums.whole()

    def differentiate(self, loss: Tensor) -> None:
        if not (self.active and in_training()) or loss.grad_fn is None:
            return
        held, current = weakref.ref(loss), self.latest  # weak, because the loss's autograd history holds the hook

        def arrive(gradient: Tensor) -> None:
            root = held()
            if root is not None:
                self._arrived(current, [get_gradient_edge(root)], [gradient])

        loss.register_hook(arrive)

    def _watch(self) -> list[RemovableHandle]:
        for name, module in self._model.named_modules():
            why = _mixes(module)
            if why:
                raise ConfigError(f"module {name!r} ({type(module).__name__}) {why}; use the source 'accumulation'")
        inner = self._model.module if isinstance(self._model, DistributedDataParallel) else self._model
        self._cut = Cut(inner, lambda: self.latest.units.numel())
        self._cut.attach()
        return [
            *super()._watch(),
            inner.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),
            inner.register_forward_hook(self._leave),
        ]

    def _forget(self) -> None:
        super()._forget()
        self.seen = Seen()
        self._cut.begin()
        self._coupling.forget()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.active and in_training():
            self._cut.begin()
            if self._steps % 4 in (0, 3):  # half of the batches, also where two kinds of them come in turn
                self._inputs.add(tensors_of((args, kwargs)), self.latest.units, alone=not self.shared)
            self.seen.replay = Replay(module, args, kwargs) if self._due() else None

    def _leave(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if torch.compiler.is_compiling():
            self._compiled = True
            return None
        if not (self.active and in_training()):
            return None
        latest, examples = self.latest, self.latest.units.numel()
        if torch._C._are_functorch_transforms_active():
            self._fail(TRANSFORM)
        if self._failure is not None:
            return None
        leaves = differentiable(output)
        rows = [leaf for leaf in leaves if has_rows(leaf, examples)]
        self._has_rows = bool(rows)
        if rows:
            self._cut.detach()
            self._cut.add(rows if len(rows) < len(leaves) else [])
        if self.seen.replay is not None and self.seen.replay.changed(trained=True):
            self.seen.replay, self._separation.why_not = None, CHANGES
        bound = bounded(output, partial(self._arrived, latest))
        if self._due() and len(latest.units) > 1:
            outputs = [get_gradient_edge(leaf) for leaf in differentiable(bound) if has_rows(leaf, examples)]
            subsets = [self._separation.some(latest.units, half=half) for half in (True, False)]
            calls = self._cut.calls
            self._coupling.look(latest.number, lambda: [*outputs, *self._cut.edges(calls)], subsets)
        return bound

    def _run_again(self, kept: Tensor, others: Tensor) -> list[Call]:
        """Repeat the forward pass with all examples but the kept ones replaced; return the calls before the loss."""
        assert self.seen.replay is not None
        with self._cut.recording() as calls:
            output = self.seen.replay.run(kept, others)
        self._draws = self.seen.replay.draws
        calls = [call for call in calls if call.name in self._cut.names]
        rows = [leaf for leaf in tensors_of(output) if has_rows(leaf, len(kept))]
        return [Call("", rows)] if self._has_rows else calls

    def _arrived(self, current: Pass, edges: Sequence[GradientEdge], gradients: Sequence[Tensor | None]) -> None:
        """Compute the gradients of the cells when those of training have arrived at the end of a forward pass.

        Called before the gradients of training propagate further.
        """
        roots = [(edge, slope) for edge, slope in zip(edges, gradients, strict=True) if slope is not None]
        if not self.active or self._failure or is_sending() or not roots:
            return None
        shared, task = self.shared, torch._C._current_graph_task_id()
        if torch.is_grad_enabled():
            return self._fail(TWICE)
        if current.number in self.seen.done:
            return self._fail(TWO_BACKWARD)
        if task == self.seen.task and not shared:
            return self._fail(TWO_FORWARD)
        self.seen.done.add(current.number)
        if self._due():
            self._coupling.arrived(current.number)
        if not self._add_pass(current):
            return None
        examples = current.units.numel()
        cells = Cells(current.units, None if self.single else self._groups)
        if task != self.seen.task:
            self._sums.begin(cells, complete=self._due(), several=shared, weights=current.weights)
            self.seen.task = task
        self.backward_passes = max(1, cells.number - 1)
        try:
            whole = any(not has_rows(slope, examples) for _, slope in roots)
            sent = partial(self._sent, roots, torch.zeros(examples, dtype=torch.bool))
            if whole and not self._cut.find(lambda: not any(part is not None and part.any() for part in sent())):
                return self._fail(NO_CUT)
            for cell in range(cells.number - (not self._due())):
                self._sums.put(cell, self._sent(roots, cells.mask(cell)))
        except Exception as error:  # noqa: BLE001 - must not end a training run; the message is passed on
            self._fail(f"the backward pass of the model cannot run more than once: {reason(error)}")

    def _sent(self, roots: Sequence[tuple[GradientEdge, Tensor]], kept: Tensor) -> list[Tensor | None]:
        """Return the parameter gradients with the output gradients of all examples but the kept ones set to zero."""
        examples = len(kept)
        masked = [only(slope, kept) if has_rows(slope, examples) else slope for _, slope in roots]
        trained = [tensor for tensor in self._parameters if tensor.requires_grad]
        if not trained:
            return [None] * len(self._parameters)
        edges = [edge for edge, _ in roots]
        with sending(self._parameters), self._cut.keeping(kept):
            gradients = iter(torch.autograd.grad(edges, trained, masked, retain_graph=True, allow_unused=True))
        return [next(gradients) if tensor.requires_grad else None for tensor in self._parameters]

    def _take(self, index: int, gradient: Tensor) -> None:
        self.seen.reached = True
        if self._failure is not None:
            return
        if self._compiled:
            self._fail(COMPILED)
        elif self.latest.number == 0:
            self._fail(NOT_CALLED)
        elif torch._C._current_graph_task_id() != self.seen.task or not self._sums.found(index, gradient):
            self._fail(ELSEWHERE.format(self._names[index]))


def _mixes(module: nn.Module) -> str:
    """Return why a module of this type leaves single examples without gradients of their own; empty if it does not."""
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return "mixes the examples of a batch, so that a group has no gradient of its own"
    if getattr(module, "scale_grad_by_freq", False):
        return "divides gradients by how often a word is in the batch, so that a group has no gradient of its own"
    return ""


@SOURCES.register("split")
class Split(InsideBackward):
    """Source that splits the batch of every forward pass into a few groups; each but one costs a backward pass."""


@SOURCES.register("per_example")
class PerExample(InsideBackward):
    """Source that measures the gradients of single examples inside the backward pass (Gray et al., arXiv 2411.00999).

    Of all group sizes, one example gives the estimate of least variance. Costs one backward pass per example.
    """

    single = True
