"""Tensors that are the same for all examples, as one copy per group.

Where such a tensor meets the examples, in whatever function of torch, the function runs on every group with its copy,
and autograd finds the gradient of every group. What else a model computes is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from cbs.errors import reason
from cbs.noise_scale.layers.contribution import Dense
from cbs.noise_scale.layers.forward_pass import Pass, refuse_second_derivatives
from cbs.noise_scale.layers.group_by_group import group_by_group
from cbs.noise_scale.layers.recorder import Recorder
from cbs.noise_scale.state import State

ROUNDINGS = 2**10
"""Rounding errors of the largest entry by which a function may differ from itself, run group by group."""

REPEATING = ("expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave")
"""Functions that give every example a row of what they share."""


class Inseparable(Exception):
    """A function inside a layer's module cannot run group by group."""


class Copies(torch.autograd.Function):
    """A parameter tensor repeated along a new first dimension, one copy per group, without a copy in memory."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, sharing: Sharing, current: Pass, index: int) -> Tensor:  # type: ignore[override]
        ctx.sharing, ctx.current, ctx.index = sharing, current, index
        return parameter.detach().expand(current.groups, *parameter.shape)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivatives(f"layer {ctx.sharing.name!r}")
        recorder = ctx.sharing.recorder
        if recorder.failure is not None:
            return gradients.sum(0), None, None, None
        return recorder.take(ctx.current, ctx.index, Dense(gradients)), None, None, None


class Shared(Tensor):
    """What is the same for all examples; behaves as the tensor itself, differentiable where groups are not told apart.

    Attributes:
        copies: one per group, shape ``[groups, *shape]``.
        sharing: of the layer whose parameter it is made of.
        current: the forward pass.
    """

    copies: Tensor
    sharing: Sharing
    current: Pass

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves, structure = tree_flatten((args, kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            name = getattr(func, "__name__", "")

            def call(values: Sequence[Any]) -> Any:
                args, kwargs = tree_unflatten(list(values), structure)
                result = func(*args, **kwargs)
                return args[0] if name == "__setitem__" else result

            return _call(call, name, leaves)


class Sharing:
    """How the parameters of a layer's module are shared.

    Args:
        name: of the layer.
        module: its module.
        watched: index of the parameter tensor by attribute name, for those to watch.
        recorder: where contributions go.

    Attributes:
        known: whether the module is known to run group by group, and has to as a whole.
        inside: whether the module runs.
        agreed: names of functions that gave, group by group, what they give for all examples.
        why_whole: why the module has to run group by group as a whole, because of a function in it; empty if not.
    """

    def __init__(self, name: str, module: nn.Module, watched: dict[str, int], recorder: Recorder) -> None:
        self.name = name
        self.module = module
        self.watched = watched
        self.recorder = recorder
        self.parameters = [module.get_parameter(attribute) for attribute in watched]
        self._paths = [name.rpartition(".")[::2] for name in watched]
        self.known, self.inside, self.why_whole = False, False, ""
        self.agreed: set[str] = set()

    def fail(self, why: str) -> None:
        """Give up this step, because the groups of a parameter tensor cannot be told apart."""
        names = ", ".join(map(repr, self.watched))
        self.recorder.fail(
            f"a parameter of layer {self.name!r} ({type(self.module).__name__}: {names}) {why}; "
            "use the source 'accumulation'"
        )

    def shared(self, current: Pass) -> list[Shared]:
        """The parameter tensors as shared tensors."""
        return [
            _shared(mine.view_as(mine), Copies.apply(mine, self, current, index), self, current)  # type: ignore[no-untyped-call]
            for mine, index in zip(self.parameters, self.watched.values(), strict=True)
        ]

    def places(self) -> list[tuple[dict[str, nn.Parameter | None], str]] | None:
        """Where the parameter tensors are kept; ``None`` where others stand in their place."""
        places = [(self.module.get_submodule(path)._parameters, key) for path, key in self._paths]
        for (holder, key), mine in zip(places, self.parameters, strict=True):
            if holder.get(key) is not mine:
                return None
        return places

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The output of the module's ``forward`` while its parameters are shared tensors."""
        places, current = self.places(), self.recorder.enter(self.name)
        if current is None or places is None:
            return forward(*args, **kwargs)
        current.count(self.watched.values())
        if not self.known:
            self.recorder.separation.alike.add(self.name)

        def run(parameters: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
            self.inside = True
            try:
                for (holder, key), value in zip(places, parameters, strict=True):
                    holder[key] = value  # type: ignore[assignment]
                return forward(*args, **kwargs)
            finally:
                self.inside = False
                for (holder, key), mine in zip(places, self.parameters, strict=True):
                    holder[key] = mine

        shared = self.shared(current)
        if current.plain:
            return run([_plain(entry) for entry in shared], args, kwargs)
        if not (self.known or self.why_whole):
            before = State(self.module)
            try:
                return run(shared, args, kwargs)
            except Inseparable as error:
                if error.args[0] is not self:
                    raise
                before.restore()
                self.agreed, self.why_whole = set(), reason(error.__cause__ or error)
        try:
            return self._whole(run, current, shared, args, kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            self.fail(f"cannot be used group by group: {self.why_whole or reason(error)}")
            return run([_plain(entry) for entry in shared], args, kwargs)

    def _whole(self, run: Callable[..., Any], current: Pass, shared: list[Shared], args: Any, kwargs: Any) -> Any:
        """The output of the module when it runs on every group, with its copies of the parameters."""
        leaves, structure = tree_flatten((args, kwargs))
        rows = self.rows([leaf for leaf in leaves if isinstance(leaf, Tensor)], current.examples)
        if rows is None or any(isinstance(leaf, Shared) for leaf in leaves):
            raise ValueError("it is given nothing that has a dimension of examples")

        def call(values: Sequence[Any]) -> Any:
            return run(values[len(leaves) :], *tree_unflatten(list(values[: len(leaves)]), structure))

        values = [*leaves, *self.parameters]
        before = State(self.module)
        found = group_by_group(
            call, values, [None] * len(leaves) + [entry.copies for entry in shared], current.cells, rows
        )
        if before.changed():
            before.restore()
            raise ValueError("it changes its buffers, as a power iteration does")
        self.require_agreement("", found, lambda: call(values))
        return found

    def require_agreement(self, name: str, found: Any, whole: Callable[[], Any]) -> None:
        """Compare results of groups with that for all examples, until they agreed once."""
        if self.known or name in self.agreed:
            return
        with torch.no_grad():
            if not all(map(_agree, tree_leaves(found), tree_leaves(whole()))):
                raise ValueError("it mixes examples or draws random numbers")
        self.agreed.add(name)

    def rows(self, others: Sequence[Tensor], examples: int) -> int | None:
        """First dimension of the arguments that have examples there."""
        buffers = {buffer.untyped_storage().data_ptr() for buffer in self.module.buffers(recurse=False)}
        for other in others:
            divisible = other.ndim and other.shape[0] and other.shape[0] % examples == 0
            if divisible and not are_places(other, examples) and other.untyped_storage().data_ptr() not in buffers:
                return other.shape[0]
        return None


def _plain(shared: Shared) -> Tensor:
    return shared.as_subclass(Tensor)  # type: ignore[no-any-return]


def _copies(leaves: Sequence[Any]) -> list[Tensor | None]:
    """The copies of those leaves that are shared."""
    return [leaf.copies if isinstance(leaf, Shared) else None for leaf in leaves]


def are_places(ids: Tensor, examples: int) -> bool:
    """Whether indices are of places in a sequence or of pairs of them, rather than of examples: told by their number,
    where that cannot be by their values, which are one more at the next place or depend on the distance alone."""
    if ids.is_floating_point() or ids.dtype is torch.bool or not 0 < ids.ndim <= 2 or len(ids) == 1:
        return False
    if len(ids) % examples and examples not in ids.shape:
        return True
    steps = ids.diff() - 1 if ids.ndim == 1 else ids[1:, 1:] - ids[:-1, :-1]
    return steps.numel() > 0 and not bool(steps.any()) and bool((ids != ids.flatten()[0]).any())


def _shared(value: Tensor, copies: Tensor, sharing: Sharing, current: Pass) -> Shared:
    shared = value.as_subclass(Shared)
    shared.copies, shared.sharing, shared.current = copies, sharing, current
    return shared


def _call(call: Callable[[Sequence[Any]], Any], name: str, leaves: list[Any]) -> Any:
    """A function of tensors some of which are shared."""
    first = next(leaf for leaf in leaves if isinstance(leaf, Shared))
    sharing, current = first.sharing, first.current
    values = [_plain(leaf) if isinstance(leaf, Shared) else leaf for leaf in leaves]
    if current.plain:
        return call(values)
    others = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, Shared)]
    rows = sharing.rows(others, current.examples) if torch.is_grad_enabled() else None
    try:
        if rows is None:
            return _alone(call, name, leaves, values, sharing, current)
        # Attention may draw random numbers, for all examples at once. A mask alone does not say where they are.
        if name == "scaled_dot_product_attention" and max(map(len, values[:3])) == current.examples:
            return call([_repeated(leaf) if isinstance(leaf, Shared) else leaf for leaf in leaves])
        in_place = name.startswith(("__i", "__set")) or (name.endswith("_") and not name.endswith("__"))
        found = group_by_group(call, values, _copies(leaves), current.cells, rows, in_place=in_place)
        if not in_place:
            sharing.require_agreement(name, found, lambda: call(values))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if sharing.inside:
            raise Inseparable(sharing) from error
        sharing.fail(f"cannot be used group by group in {name!r}: {reason(error)}")
        return call(values)
    return found


def _alone(
    call: Callable[[Sequence[Any]], Any],
    name: str,
    leaves: list[Any],
    values: list[Any],
    sharing: Sharing,
    current: Pass,
) -> Any:
    """A function that meets no examples: it is shared what it makes of what is shared."""
    whole = call(values)
    if not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(whole)):
        return whole
    if any(isinstance(leaf, Tensor) and leaf.requires_grad and not isinstance(leaf, Shared) for leaf in leaves):
        raise ValueError("it meets something that has no dimension of examples")
    found = group_by_group(call, values, _copies(leaves), current.cells, None)
    own = [leaf.shape[:1] for leaf in leaves if isinstance(leaf, Shared)]
    repeated = {(current.examples,)} if name in REPEATING else set()
    if name in ("repeat", "tile"):  # several rows for every example, as one per head
        repeated |= {(current.examples * rows,) for (rows,) in filter(None, own)}
    repeated -= set(own)

    def share(value: Any, copies: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        if value.shape[:1] not in repeated:
            return _shared(value, copies, sharing, current)
        return current.cells.restored(copies[:, : value.shape[0] // current.groups].flatten(0, 1))

    return tree_map(share, whole, found)


def _repeated(shared: Shared) -> Tensor:
    """What is shared, with a first dimension of 1, for every example."""
    return shared.current.cells.restored(shared.copies.squeeze(1).repeat_interleave(shared.current.size, 0))


def _agree(output: Tensor, whole: Tensor) -> bool:
    """Whether a function run group by group gives what it gives for all examples, up to rounding."""
    if output.shape != whole.shape:
        return False
    difference = (output.detach() - whole).abs().max() if output.numel() else torch.zeros(())
    rounding = torch.finfo(whole.dtype).eps
    return not difference > min(ROUNDINGS * rounding, rounding**0.75) * whole.abs().max()
