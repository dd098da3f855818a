"""Whether the rows that a layer sees belong to the examples they are taken for, found out by a forward pass in which
other examples are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from cbs.beside import beside
from cbs.errors import ConfigError, reason
from cbs.noise_scale.grouping import neighbours, pick
from cbs.noise_scale.layers.alike import copies
from cbs.noise_scale.layers.coupling import Coupling
from cbs.noise_scale.passes import ForwardPasses
from cbs.noise_scale.state import State

IDLE = 0.5
"""Share of examples without a gradient beyond which that is said."""

OUTPUT = ""
"""Stands for the model's output where names of layers stand."""


class Separation:
    """Runs a forward pass twice more, each time with half of the examples replaced by others of the batch, and looks
    whether anything changes for those that stayed: a layer that sees them must not know.

    What is compared is a projection of every example's rows in the first argument of every watched layer, and in the
    first output. The passes begin with the same random state and buffers, and leave both as they were.

    Args:
        model: called in the training loop.
        passes: its forward passes.
        due: whether the passes of the coming step are to be checked; the last one of a step is.

    Attributes:
        alike: names of layers that take care of what is the same for all examples.
        looking: whether layers are to show their arguments.
        rehearsing: whether this is the pass before the first one, which shows whether and how a watched model runs.
        broken: why it does not; empty if it does.
        copies: see :func:`copies`; of the latest pass to be checked.
        why_not: why the latest pass to be checked was not; empty if it was.
    """

    def __init__(self, model: nn.Module, passes: ForwardPasses, due: Callable[[], bool]) -> None:
        self.alike: set[str] = set()
        self.looking = self.rehearsing = False
        self.why_not = self.broken = ""
        self._rehearsed = False
        self._model = model
        self._passes = passes
        self._due = due
        self._handles: list[RemovableHandle] = []
        self._checks = 0
        self._replay: _Replay | None = None
        self._seen: list[_Seen] = []
        self._coupling = Coupling()
        self.copies = (0, 0.0)

    @property
    def caveat(self) -> str:
        """What to say of the loss and of the examples of the latest pass that was checked; empty if nothing."""
        idle, examples = self._coupling.idle
        said = []
        if idle > IDLE * examples:
            said.append(
                f"the loss has no gradient for {idle} of {examples} examples: where others in the batch decide which, "
                "as where the hardest count, it is not the noise of single examples; see NoiseScaleMeter.check"
            )
        lag, share = self.copies
        if lag:
            where = "next to them" if lag == 1 else f"{lag} places on"
            said.append(
                f"{share:.0%} of the examples are nearly the same as those {where}, as augmentations of one are, or "
                "answers to one prompt: say with groups= which belong together"
            )
        return "; ".join(said)

    def attach(self) -> None:
        """Look on from the next forward pass."""
        self._handles = [
            self._model.register_forward_pre_hook(self._begin, with_kwargs=True),
            self._model.register_forward_hook(self._end),
        ]

    def detach(self) -> None:
        """Stop looking on."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._replay, self.looking = [], None, False
        self._coupling.forget()

    def look(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take notice of what a layer is called with."""
        first = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        if first is not None and first.layout is torch.strided:
            self._seen.append(_Seen(name, first.shape, _projections(first, self._passes.examples)))

    def verify(self) -> None:
        """Check the latest forward pass, if that is due.

        Raises:
            ConfigError: if what a layer sees of one example depends on others.
        """
        replay, self._replay = self._replay, None
        if replay is None:
            return
        self._coupling.verify()
        seen, examples = self._seen, self._passes.examples
        self.why_not = "" if seen else "no layer runs within the forward pass of the model that was given"
        rows = replay.rows(examples)
        if not rows:
            self.why_not = "the first tensor in the model's arguments does not have examples first"
        if self.why_not:
            return
        self._checks += 1
        stay, others = self._some(half=True), neighbours(examples, self._passes.members, self._passes.order)
        known = [entry.values for entry in seen if len(entry.values) == examples]
        self.copies = copies(known) if known and self._passes.members == 1 else (0, 0.0)
        touched = [torch.zeros(len(entry.values), dtype=torch.bool) for entry in seen]
        for kept in (stay, ~stay):
            self._seen, self.looking = [], True
            try:
                self._look_at(replay.run(kept, others, rows // examples))
            except Exception as error:  # noqa: BLE001 - a model may raise anything, and what it says is passed on
                self.why_not = f"the model does not run on other examples: {reason(error)}"
                return
            finally:
                self.looking = False
            if [(entry.name, entry.shape) for entry in self._seen] != [(entry.name, entry.shape) for entry in seen]:
                raise ConfigError(
                    "which layers are called, and with how many rows, depends on all examples of a batch, as where "
                    "examples are sent to experts; use the source 'accumulation'"
                )
            for change, before, after in zip(touched, seen, self._seen, strict=True):
                changed = _changed(before.values, after.values)
                if bool((changed & kept if len(changed) > 1 else changed).any()):
                    raise ConfigError(_mixing(before.name))
                change |= changed
        for change, entry in zip(touched, seen, strict=True):
            values, cared = entry.values, entry.name in ("", *self.alike)
            if not cared and len(values) > 1 and not change.any() and bool(_changed(values[:1], values[1:]).any()):
                raise ConfigError(
                    f"what layer {entry.name!r} sees does not depend on the examples, though it has as many rows "
                    "or a multiple; give it a first dimension of 1, or use the source 'accumulation'"
                )

    def _some(self, *, half: bool) -> Tensor:
        """Half of the examples, in whole groups, or one group: others in every check, shape ``[examples]``."""
        examples, members, order = self._passes.examples, self._passes.members, self._passes.order
        groups = torch.randperm(examples // members, generator=torch.Generator().manual_seed(self._checks))
        wanted = groups[: len(groups) // 2 if half else 1]
        chosen = torch.zeros(len(groups), 1, dtype=torch.bool).index_fill_(0, wanted, True)
        stay = chosen.expand(-1, members).flatten()
        return stay if order is None else torch.empty_like(stay).index_copy_(0, order, stay)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._replay, self._seen = None, []
        self._coupling.forget()
        if torch.is_grad_enabled() and self._passes.examples > self._passes.members and self._due():
            self._replay = _Replay(module, args, kwargs)
            if not (self._rehearsed or torch._C._are_functorch_transforms_active()):
                self._rehearse(self._replay)
            self.looking = not self.broken

    def _rehearse(self, replay: _Replay) -> None:
        self._rehearsed = self.rehearsing = True
        try:
            replay.run(torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.long), 1)
        except Exception as error:  # noqa: BLE001 - a model may raise anything, and what it says is passed on
            self.broken = f"the model does not run while its layers are watched: {reason(error)}"
        finally:
            self.rehearsing = False

    def _end(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self.looking:
            self._look_at(output)
            self.looking = False
            if self._passes.wrong is None and not torch._C._are_functorch_transforms_active():
                subsets = [self._some(half=half) for half in (True, False)]
                self._coupling.look(output, self._passes.examples, subsets)

    def _look_at(self, output: Any) -> None:
        leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.ndim]
        if leaves and self._seen and leaves[0].shape[0] % self._passes.examples == 0:
            self.look(OUTPUT, leaves[:1], {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Separation:
        """A copy of the model is not looked at."""
        return Separation(nn.Module(), ForwardPasses(nn.Module()), bool)

    def __reduce__(self) -> Any:
        return Separation, (nn.Module(), ForwardPasses(nn.Module()), bool)


class _Seen(NamedTuple):
    """What a layer was called with: the shape of its first tensor, and :func:`_projections` of that."""

    name: str
    shape: torch.Size
    values: Tensor


class _Replay:
    """All that a forward pass depends on.

    Args:
        module: that is called.
        args: its arguments.
        kwargs: likewise.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = module.module if isinstance(module, DistributedDataParallel) else module
        self._arguments = tree_map(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self._first = next((tensor for tensor in tensors if tensor.ndim), None)
        self._state = State(module, random=True)
        kind = next(module.parameters()).device.type
        self._autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    def rows(self, examples: int) -> int:
        """First dimension of what holds the examples; 0 if they do not divide it."""
        rows = 0 if self._first is None else self._first.shape[0]
        return 0 if rows % examples else rows

    def run(self, kept: Tensor, others: Tensor, rows: int) -> Any:
        """The output with all examples but those kept replaced by others.

        Args:
            kept: shape ``[examples]``.
            others: which those are, shape ``[examples]``.
            rows: of an example in an argument.
        """
        stay = kept.repeat_interleave(rows)

        def replace(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] != len(stay):
                return leaf
            mask = stay.to(leaf.device).view(-1, *[1] * (leaf.ndim - 1))
            return torch.where(mask, leaf, pick(leaf, others, len(others)))

        args, kwargs = tree_map(replace, self._arguments)
        now = State(self._module, random=True)
        try:
            self._state.restore()
            with beside(), self._autocast, torch.enable_grad():
                return self._module.forward(*args, **kwargs)
        finally:
            now.restore()


def _projections(tensor: Tensor, examples: int) -> Tensor:
    """Two numbers for every example, shape ``[examples, 2]``: a weighted sum of its rows and their norm; ``[1, 2]``
    where the rows are not a multiple of the examples."""
    values = tensor.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    values = values if values.dtype is torch.float64 else values.float()
    divisible = values.ndim > 0 and values.shape[0] > 0 and values.shape[0] % examples == 0
    flat = values.reshape(examples if divisible else 1, -1)
    # Equal weights would miss whatever is normalised.
    weights = torch.arange(1, flat.shape[1] + 1, device=flat.device, dtype=flat.dtype).cos_()
    rounding = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else torch.finfo(flat.dtype).eps
    norms = torch.linalg.vector_norm(flat, dim=1)
    return torch.stack(((flat * weights).sum(1), norms * rounding**0.5), dim=1).cpu()


def _changed(before: Tensor, after: Tensor) -> Tensor:
    """Which projections differ by more than rounding."""
    difference = (before[:, 0] - after[:, 0]).abs()
    return difference > torch.maximum(before[:, 1], after[:, 1])


def _mixing(name: str) -> str:
    what = f"what layer {name!r} sees of one example" if name else "the model's output for one example"
    return (
        f"{what} depends on others: the model mixes examples, they do not come first in a layer, or the weights "
        "changed before they were measured; put them first (batch_first=True), or use the source 'accumulation'"
    )
