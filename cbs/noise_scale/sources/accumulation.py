"""Sources that compare what a step adds up, without a copy of the gradients: micro-batches, and ranks (DDP, FSDP2)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError
from cbs.noise_scale.batch_constants import sums_and_divisors, weights_over_step
from cbs.noise_scale.boundary import BeforeBackward, differentiable
from cbs.noise_scale.coupling import LEAST
from cbs.noise_scale.cut import has_rows, in_training
from cbs.noise_scale.distributed import data_parallel_groups, initialized, is_sharded, require_norms
from cbs.noise_scale.passes import TWO_BACKWARD, TWO_FORWARD
from cbs.noise_scale.small_batch import Small
from cbs.noise_scale.sources import SOURCES, Source

UNEVEN = (
    "the loss of a step is divided by the sum of weights over all of its micro-batches (counted tokens, class weights),"
    " of which they have {:.2g} to {:.2g} times their share: a noise scale near the batch size is wrong by up to about "
    "{:.0%}, others by more; pass the weights of examples by weights=, or divide each micro-batch by its own sum"
)


@SOURCES.register("accumulation")
class Accumulation(Source):
    """Source in which every backward pass is one group.

    A tensor hook on each parameter sees the gradient of a backward pass before it is added to ``.grad``. This works
    with any model, compiled or not, and costs one read of the gradient per micro-batch. One micro-batch per step is not
    enough: a single group leaves nothing to compare.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.micro_batches = self._groups
        self._before = BeforeBackward()

    def attach(self) -> None:
        super().attach()
        self._handles.append(self._model.register_forward_hook(self._look))

    def detach(self) -> None:
        super().detach()
        self._before.forget()

    def _measured(self) -> Small | None:
        examples = self.latest.units.numel()
        if self._examples and not self.shared and examples and self._outputs % examples:
            raise ConfigError(
                f"the first tensor that the model is called with has {examples} rows, but its output {self._outputs}: "
                "pass count= to say how many examples a forward pass has"
            )
        if self._counted and not callable(self._weights):
            found = weights_over_step(self._counted, bool(self.ranks))
            error = 0.0 if found is None else (1 + float(found.std(correction=0)) / len(found) ** 0.5) ** 2 - 1
            if found is not None and error > LEAST and not self.uneven:
                self.uneven = UNEVEN.format(float(found.min()), float(found.max()), error)
        self._steps += 1
        weights = [*self._of_passes.values()]
        return self._sums.small(len(self._examples), sum(self._examples.values()), weights) if self._examples else None

    def _forget(self) -> None:
        super()._forget()
        self._examples: dict[int, int] = {}
        self._of_passes: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._counted: list[tuple[dict[Any, float], set[tuple[Any, float]], int]] = []
        self._differentiated = self.latest.number

    def _look(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if not (self.active and in_training() and self._due()):
            return
        examples = self.latest.units.numel()
        edges = [get_gradient_edge(leaf) for leaf in differentiable(output) if has_rows(leaf, examples)]
        self._before.call(lambda tensors, _: self._add_up(tensors, edges, examples))

    def _add_up(self, tensors: Any, edges: Sequence[GradientEdge], examples: int) -> None:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        try:
            with torch.no_grad():
                self._counted.append((*sums_and_divisors(roots, edges, examples), examples))
        except Exception:  # noqa: BLE001 - an unusual operation must not end a training run; it is not looked through
            self._counted.clear()

    def _take(self, index: int, gradient: Tensor) -> None:
        number, examples = self.latest.number, self.latest.units.numel()
        if not self._add_pass(self.latest):
            return
        if self._seen.get(index) == number:
            self._fail(TWO_BACKWARD)
        if number > self._differentiated + 1 and not self.shared:
            self._fail(TWO_FORWARD)
        self._differentiated = self._seen[index] = number
        self._examples[number] = examples
        weights = self.latest.weights
        if weights is not None:
            self._of_passes[number] = float(weights.sum())
        self._sums.add(index, examples, gradient.detach()[None], self._of_passes.get(number))


@SOURCES.register("replicas")
class Replicas(Accumulation):
    """Source in which every backward pass of every rank is one group (McCandlish et al. 2018, appendix A.1).

    A tensor hook sees a rank's own gradient before ranks are averaged, so the communication of DDP or FSDP2 grows only
    by one small sum over ranks per step. Works with or without ``no_sync()`` or ``set_requires_gradient_sync(False)``,
    with mixed precision, and with communication hooks that round but do not compress; with hooks that compress, such as
    PowerSGD, the step is refused. If a model is neither DDP nor FSDP2, the training loop is assumed to average
    gradients over all ranks.

    Raises:
        ConfigError: if this process is not a rank, or the model is sharded in another way.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        everyone = dist.group.WORLD if initialized() else None
        if everyone is None:
            raise ConfigError(
                "source 'replicas' needs torch.distributed: start with torchrun and call init_process_group, "
                "or use source 'split'"
            )
        self.ranks = data_parallel_groups(self._model) or [everyone]
        # a rank that is alone has nothing to compare unless it accumulates
        self.micro_batches = 1 if any(dist.get_world_size(group) > 1 for group in self.ranks) else 2
        self._unsharded: dict[int, tuple[nn.Parameter, RemovableHandle]] = {}

    def _watch(self) -> list[RemovableHandle]:
        from torch.distributed.fsdp import FSDPModule

        sharding = [module for module in self._model.modules() if isinstance(module, FSDPModule)]
        if not sharding:
            return super()._watch()
        for geometry in self.geometries:
            require_norms(geometry)
        if not all(is_sharded(parameter) for parameter in self._parameters):
            raise ConfigError(
                "a parameter of the FSDP2 model is not sharded, because a forward pass leaves some unsharded: "
                "attach the noise scale before the first forward pass, or call reshard() on every FSDP2 module first"
            )
        handles = []
        indices = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        for module in sharding:
            places = [
                (owner, name, indices[id(parameter)])
                for owner in module.modules()
                for name, parameter in owner.named_parameters(recurse=False)
                if id(parameter) in indices
            ]
            handles.append(module.register_forward_pre_hook(self._follow(places)))
        return handles

    def detach(self) -> None:
        super().detach()
        for _, handle in self._unsharded.values():
            handle.remove()
        self._unsharded = {}

    def _follow(self, places: Sequence[tuple[nn.Module, str, int]]) -> Callable[[nn.Module, Any], None]:
        """Return a hook that runs after FSDP2's own and registers hooks on a module's unsharded parameters."""

        def follow(_module: nn.Module, _args: Any) -> None:
            for owner, name, index in places:
                whole = getattr(owner, name)
                known = self._unsharded.get(index)
                # FSDP2 makes a new whole parameter where it has freed the last one, and the hook is gone with that
                if known is None or known[0] is not whole:
                    if known is not None:
                        known[1].remove()
                    self._unsharded[index] = whole, whole.register_hook(self._hook(index))

        return follow
