"""Base class of the optimizers that scale the direction of each tensor by the size of its weights.

For a weight w they compute a direction d from its gradient and their state, and update by ``-lr * s * d``, where the
*trust ratio* s compares a norm of w with the same norm of d:

- LAMB (You et al. 2020, arXiv 1904.00962, Algorithm 2): Adam's direction, one ratio of Euclidean norms for each tensor;
- MERIT (ICML 2025, arXiv 2508.20577, Algorithm 1): Adam's direction, one ratio for each entry, from the largest entries
  of its row, column and tensor;
- LARS (You et al. 2017, arXiv 1708.03888): the gradient, one ratio of Euclidean norms for each tensor.

A ratio is known only after all of w and d has been read, so a step reads the weights twice. Small tensors are updated
together to save calls; see :mod:`cbs.optimizers.trust_ratio.blocks`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adam import adam

from cbs.optimizers.contract import (
    CheckedOptimizer,
    check_count,
    check_size,
    evaluated,
    misfit,
    needs_dense_gradients,
    state_dtype,
)
from cbs.optimizers.trust_ratio.blocks import NormSpec, ParameterBlock, extent_on, measure, share_memory


class TrustRatioOptimizer(CheckedOptimizer):
    """A direction that is rescaled relative to the weights; subclasses define the direction and the ratio.

    The state of a parameter is ``optimizer.state[parameter]``, as in torch's own optimizers, in float32 for parameters
    of lower precision and in the parameter's own dtype otherwise. Parameters without a gradient are skipped. Sharded
    parameters (``DTensor``) are updated exactly like whole ones: sizes of rows, columns and tensors are reduced over
    the processes that hold their shards.

    Extra memory of a step: the largest parameter in the dtype of its state, twice on an accelerator, or three times the
    size of a shared block (0.25 Mi entries on a CPU, 16 Mi on an accelerator) where that is more, and the norms.

    All subclasses have the options ``lr`` (a number, or a tensor of one element), ``weight_decay``, ``ratio_from_ndim``
    and ``decay_from_ndim`` (tensors with fewer dimensions have ratio 1, and no weight decay), ``foreach`` (``False``:
    one tensor at a time) and ``capturable`` (``True``: a step neither waits for the device nor depends on values, so it
    can be captured in a CUDA graph once the first step has created the state).
    """

    state_names: ClassVar[tuple[str, ...]]
    """``"step"`` has shape ``[]``, all other state the shape of the parameter."""

    def direct(self, block: ParameterBlock, group: Mapping[str, Any], decay: float) -> None:
        """Update the state and write the descent direction ``-d`` into ``block.out``.

        Called by :meth:`step` once for every block, after :meth:`ParameterBlock.load`.
        """
        raise NotImplementedError

    def measure(self, group: Mapping[str, Any]) -> NormSpec:
        """Return how the sizes of weights and directions are measured."""
        return NormSpec()

    def ratios(self, weights: Tensor, directions: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
        """Return ratios from norms of weights and directions, all of shape ``[norms]``.

        Called by :meth:`step` after :meth:`direct`, for blocks whose tensors have a ratio.
        """
        raise NotImplementedError

    def look(self, block: ParameterBlock, group: Mapping[str, Any]) -> Any:
        """Return facts about the values of a block's norms and ratios for :meth:`apply`; waits for the device."""

    def apply(
        self, block: ParameterBlock, group: Mapping[str, Any], decay: float, lr: float | Tensor, seen: Any
    ) -> None:
        """Multiply ``block.out`` by its ratios, if it has any, and update the weights.

        ``seen`` is the result of :meth:`look`; ``None`` if that was not called.
        """
        if block.alone and block.factors:
            block.move(lr, block.factors[0][0].view(()))
            return
        for out, (ratio,) in zip(block.outs, block.factors, strict=False):
            out.mul_(ratio)
        block.move(lr)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        for name in ("ratio_from_ndim", "decay_from_ndim"):
            check_count(name, group[name], least=0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient once; return the closure's result.

        Raises:
            RuntimeError: if a gradient is sparse, or if gradient or state do not fit their parameter.
        """
        loss = evaluated(closure)
        groups = [[p for p in group["params"] if p.grad is not None and p.numel() > 0] for group in self.param_groups]
        states = [[self._state_of(param) for param in params] for params in groups]
        for index, block in self._blocks(groups, states):
            own = (
                [groups[index][member] for member in block.members],
                [states[index][member] for member in block.members],
            )
            self._update(block, self.param_groups[index], *own)
        return loss

    def trust_ratios(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield every parameter that has a ratio, with two ratios of the latest step, both of shape ``[]``.

        The first is the ratio of the whole tensor, the second the largest of those of its rows, columns and the whole.
        Undefined ratios, which act as 1, are 1 here. Yields nothing before the first step.
        """
        _, blocks, (groups, _) = vars(self).get("_plan", (None, [], ([], [])))
        for index, block in blocks:
            wholes = [factor[0].reshape(-1) for factor in block.factors]
            largest = [torch.stack([one.flatten(1).amax(1) for one in some]).amax(0) for some in block.factors]
            if wholes:
                pairs = (torch.cat(parts).nan_to_num(nan=1.0) for parts in (wholes, largest))
                for member, whole, most in zip(block.members, *pairs, strict=True):
                    yield groups[index][member], whole, most

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        state = self.state[param]
        for name in self.state_names:
            if name not in state:
                shape: Any = {"memory_format": torch.contiguous_format}
                state[name] = (
                    torch.zeros((), dtype=torch.float32, device=param.device)
                    if name == "step"
                    else torch.zeros_like(param, dtype=state_dtype(param), **shape)
                )
        return state

    def _update(
        self, block: ParameterBlock, group: Mapping[str, Any], params: list[Tensor], states: list[dict[str, Any]]
    ) -> None:
        lr, decay = group["lr"], group["weight_decay"] if block.decayed else 0.0
        if isinstance(lr, Tensor):
            lr = lr.reshape(()) if never_waits(group) else float(lr)
        own = [[local(state[name]) for state in states] for name in self.state_names]
        gradients = [local(param.grad) for param in params if param.grad is not None]
        params = [local(param) for param in params]
        block.load(params, gradients, own)
        self.direct(block, group, decay)
        seen = None
        if block.scaled:
            measure(block)
            if block.layout is not None:
                merge_over_shards(block)
            # In one call: a small model has few entries but many rows, columns and tensors.
            block.ratios.copy_(self.ratios(block.norms[0], block.norms[1], group, decay))
            # look() takes about as long as a pass over ten thousand entries.
            if block.alone and block.kind[0].type == "cpu" and not never_waits(group):
                seen = self.look(block, group)
        self.apply(block, group, decay, lr, seen)
        block.release()

    def _blocks(
        self, groups: list[list[Tensor]], states: list[list[dict[str, Any]]]
    ) -> list[tuple[int, ParameterBlock]]:
        """Return blocks and their groups, rebuilt when anything other than values has changed since the previous
        step.
        """
        known, blocks, _ = vars(self).get("_plan", (None, [], None))
        if known != self._forms(groups, states):
            for param, state in ((p, s) for some in map(zip, groups, states) for p, s in some):
                self._fit(param, state)
            blocks = [
                (index, block)
                for index, (params, group) in enumerate(zip(groups, self.param_groups, strict=True))
                for block in self._arranged(params, group)
            ]
            share_memory([block for _, block in blocks])
            # Keep the tensors alive, so that no others get their ids.
            held = groups, [[list(state.values()) for state in some] for some in states]
            self._plan = self._forms(groups, states), blocks, held
        return blocks

    def _forms(self, groups: list[list[Tensor]], states: list[list[dict[str, Any]]]) -> list[Any]:
        return [
            (
                [group["ratio_from_ndim"], group["decay_from_ndim"], group["foreach"], self.measure(group)],
                [
                    (id(param), _form(param), _form(param.grad), *[id(state[name]) for name in self.state_names])
                    for param, state in zip(params, some, strict=True)
                ],
            )
            for group, params, some in zip(self.param_groups, groups, states, strict=True)
        ]

    def _fit(self, param: Tensor, state: dict[str, Any]) -> None:
        """Prepare gradient and state in the layout that a step needs, or raise."""
        check_layout(param)
        grad = param.grad
        if grad is not None and grad.layout is not torch.strided:
            raise needs_dense_gradients(type(self).__name__)
        for name, tensor in [("gradient", grad), *((name, state[name]) for name in self.state_names)]:
            if name == "step":
                state[name] = torch.as_tensor(tensor, dtype=torch.float32, device=param.device)
                continue
            dtype = state_dtype(param) if name in self.state_names else tensor.dtype
            if (tensor.shape, tensor.device, tensor.dtype) != (param.shape, param.device, dtype):
                raise misfit(self, name, tensor, param)
            if name in state:
                state[name] = tensor.contiguous()

    def _arranged(self, params: list[Tensor], group: Mapping[str, Any]) -> list[ParameterBlock]:
        """Return blocks: large tensors alone, small ones with the same properties together."""
        how, together = self.measure(group), defaultdict(list)
        for position, param in enumerate(params):
            large = param.numel() > extent_on(param.device).small * pieces_of(param) or group["foreach"] is False
            scaled, decayed = (param.ndim >= group[name] for name in ("ratio_from_ndim", "decay_from_ndim"))
            key = scaled, decayed, param.dtype, param.device, layout_of(param), position if large else None
            together[key].append(position)
        blocks = []
        for (scaled, decayed, _, device, layout, _), members in together.items():
            members.sort(key=lambda member: tuple(params[member].shape))
            room = extent_on(device).shared * pieces_of(params[members[0]])
            while members:
                total, some = 0, list[int]()
                while members and (not some or total + params[members[0]].numel() <= room):
                    total += params[members[0]].numel()
                    some.append(members.pop(0))
                shapes = [local(params[member]).shape for member in some]
                wholes = [params[member].shape for member in some]
                kind = device, state_dtype(params[some[0]])
                blocks.append(ParameterBlock(some, shapes, wholes, kind, scaled, decayed, layout, how))
        return blocks


def never_waits(group: Mapping[str, Any]) -> bool:
    """Return whether a step must not read values from the device, which a compiler cannot do either."""
    return group["capturable"] or torch.compiler.is_compiling()


def _form(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, layout_of(tensor) if is_sharded(tensor) else tensor.layout


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, sharded or replicated."""
    # Called for every tensor in every step, and looking up a missing attribute is slow.
    return type(tensor) not in (Tensor, Parameter) and hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: the shard of a DTensor, any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def layout_of(tensor: Tensor) -> Any:
    """Return mesh and placements of a DTensor, equal for equal layouts; ``None`` for any other tensor."""
    return (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None  # type: ignore[attr-defined]


def pieces_of(tensor: Tensor) -> int:
    """Return the number of shards of a tensor."""
    if not is_sharded(tensor):
        return 1
    mesh, placements = layout_of(tensor)
    return math.prod(mesh.size(dim) for dim, placement in enumerate(placements) if _split_dim(placement) is not None)


def check_layout(param: Tensor) -> None:
    """Raise for gradients that are sharded differently from their parameter, and for parameters that are partial sums.

    Raises:
        RuntimeError: says what to do.
    """
    if not is_sharded(param) or param.grad is None:
        return
    if any(placement.is_partial() for placement in layout_of(param)[1]):
        raise RuntimeError("a parameter is a partial sum; redistribute it before building the optimizer")
    if layout_of(param.grad) != layout_of(param):
        raise RuntimeError("a gradient is sharded differently from its parameter; redistribute it before the step")


def merge_over_shards(block: ParameterBlock) -> None:
    """Replace norms of local shards by norms of whole tensors; one collective per sharded mesh dimension."""
    import torch.distributed as dist

    mesh, placements = block.layout
    for mesh_dim, placement in enumerate(placements):
        dim = _split_dim(placement)
        if dim is None:
            continue
        parts = []
        for stack, (whole, *lines) in zip(block.stacks, block.sizes, strict=True):
            # Split along dimension 0, a column lies on several processes; along dimension 1, a row does.
            split = (dim == 1 or (stack.inner and dim > 1), dim == 0)
            parts += [whole, *(line for line, flag in zip(lines, split, strict=False) if flag)]
        total = torch.cat([part.reshape(-1) for part in parts])
        group = mesh.get_group(mesh_dim)
        if block.measure.norm == "max":
            dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
        else:
            dist.all_reduce(total.square_(), dist.ReduceOp.SUM, group=group)
            total.sqrt_()
        for part, merged in zip(parts, total.split([part.numel() for part in parts]), strict=True):
            part.copy_(merged.view(part.shape))


def _split_dim(placement: Any) -> int | None:
    return getattr(placement, "dim", None)


class AdamTrustRatio(TrustRatioOptimizer):
    """Trust ratios on Adam's direction.

    With the moments of the gradient g, divided by ``1 - beta^step`` where ``bias_correction`` is set,

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        d  = m / (sqrt(v) + eps) + weight_decay * w

    Weight decay is part of the direction, so the ratio scales it, too. Options in addition to those of
    :class:`~cbs.optimizers.trust_ratio.core.TrustRatioOptimizer`: ``betas``, ``eps`` and ``bias_correction``.
    """

    state_names = ("step", "exp_avg", "exp_avg_sq")

    def direct(self, block: ParameterBlock, group: Mapping[str, Any], decay: float) -> None:
        """Write ``-(m / (sqrt(v) + eps) + weight_decay * w)`` to ``out``, after updating the moments."""
        (beta1, beta2), (steps, means, squares), out = group["betas"], block.states, block.out
        # torch's Adam with a learning rate of 1 subtracts m / (sqrt(v) + eps) from the tensors passed as parameters.
        if decay:
            torch.mul(block.weight, -decay, out=out)
        else:
            out.zero_()
        if not group["bias_correction"]:
            # Adding a tensor takes half the time: torch would convert a number to a tensor for every parameter.
            torch._foreach_add_(steps, torch.ones_like(steps[0]), alpha=1.0)
            # With an infinite step count torch's bias correction does nothing.
            steps = [torch.full_like(steps[0], math.inf)] * len(steps)
        adam(
            block.views,
            block.gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=1.0,
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_size("eps", group["eps"])
        betas = group["betas"]
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
