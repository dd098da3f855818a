"""What optimizers share that scale a direction, tensor by tensor, with the size of the weights.

For a weight w they take a direction d from its gradient and their state, and move by ``-lr * s * d``, where the *trust
ratio* s compares a norm of w with the same norm of d:

- LAMB (You et al. 2020, arXiv 1904.00962, Algorithm 2): Adam's direction, one ratio of Euclidean norms for each tensor;
- MERIT (ICML 2025, arXiv 2508.20577, Algorithm 1): Adam's direction, one ratio for each entry, from the largest entries
  of its row, column and tensor;
- LARS (You et al. 2017, arXiv 1708.03888): the gradient, one ratio of Euclidean norms for each tensor.

A ratio is known only once the whole of w and d has been read, so a step reads the weights twice. Per parameter in
float32 that is 40 bytes for LAMB and MERIT against AdamW's 28, if directions are computed twice or kept in a cache.
Small tensors are therefore updated together and large ones in tiles; see :mod:`cbs.optimizers.trust_ratio.blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.contract import state_dtype
from cbs.optimizers.trust_ratio.blocks import Bucket, Tile, extent_on, flat, stacks_of, tiles_of, unflatten
from cbs.optimizers.trust_ratio.norms import NORMS
from cbs.optimizers.trust_ratio.sharded import check_layout, layout_of, like_param, local, merge_over_shards, pieces_of

_fused_sgd: Any = getattr(torch, "_fused_sgd_", None)


@dataclass(frozen=True)
class Measure:
    """How the size of a tensor is read.

    Attributes:
        name: of the norm, in :data:`cbs.optimizers.trust_ratio.norms.NORMS`.
        by_line: whether rows and columns of tensors of two or more dimensions have sizes of their own.
        inner: whether the dimensions from the second on are one; else a row runs along dimension 1 alone.
    """

    name: str = "l2"
    by_line: bool = False
    inner: bool = False


class TrustRatioOptimizer(torch.optim.Optimizer):
    """A direction, rescaled against the weights; subclasses say which direction and which ratio.

    State is kept in float32 for parameters of a lower precision and in the parameter's own type otherwise. Parameters
    without a gradient are skipped. Sharded parameters (``DTensor``) are updated exactly like whole ones: sizes of rows,
    columns and tensors are added up over the processes that hold their pieces.

    Extra memory of a step: one block of directions (at most 4 Mi entries on a CPU, 16 Mi on an accelerator), two tiles
    and the sizes. A parameter that is not contiguous is updated in one piece.

    Args:
        params: parameters, or groups of them as torch.optim takes them; every option can be set for a group.
        defaults: the options. All subclasses have ``lr`` (a number, or a tensor of one element), ``weight_decay``,
            ``ratio_from_ndim`` and ``decay_from_ndim`` (tensors with fewer dimensions have ratio 1, and no weight
            decay), ``foreach`` (``False``: tensor by tensor with public operations only, slower) and ``capturable``
            (``True``: a step never waits for the device, nor does what it runs depend on values, so it can be captured
            in a CUDA graph once the first step has built the state).

    Raises:
        ValueError: if a value is outside its domain.
    """

    state_names: ClassVar[tuple[str, ...]]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, defaults)

    def direct(self, tile: Tile, group: dict[str, Any], *, advance: bool) -> None:
        """Write the descent direction ``-d`` into ``tile.out``; update the state first if ``advance``."""
        raise NotImplementedError

    def measure(self, group: dict[str, Any]) -> Measure:
        """How the sizes of weights and directions are read."""
        return Measure()

    def ratios(self, weights: Tensor, directions: Tensor, group: dict[str, Any], decay: float) -> Tensor:
        """Ratios from norms of weights and directions, all of shape ``[norms]``."""
        raise NotImplementedError

    def look(self, bucket: Bucket, group: dict[str, Any]) -> tuple[bool, bool]:
        """Whether all ratios are finite, and whether no update reaches a bound on it. Waits for the device."""
        return False, False

    def scale(self, tile: Tile, group: dict[str, Any], *, finite: bool, tame: bool) -> None:
        """Multiply ``tile.out`` by its ratios; there are none where they are 1. See :meth:`look` for the flags."""
        for out, (ratio,) in zip(tile.outs, tile.ratios, strict=False):
            out.mul_(ratio)

    def move(self, tile: Tile, group: dict[str, Any]) -> tuple[Tensor, float]:
        """What is added to the weights, as a vector and its factor."""
        if isinstance(group["lr"], Tensor):
            return tile.out.mul_(group["lr"]), 1.0
        return tile.out, group["lr"]

    def check(self, group: dict[str, Any]) -> None:
        """Refuse values outside their domain.

        Raises:
            ValueError: with the name and the value.
        """
        for name in ("lr", "weight_decay"):
            check_size(name, group[name])
        for name in ("ratio_from_ndim", "decay_from_ndim"):
            if not isinstance(group[name], int) or group[name] < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {group[name]}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient once; returns what ``closure`` returns.

        Raises:
            RuntimeError: if a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            for bucket in self._buckets_of(index, group):
                self._update(bucket, group)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; see :meth:`torch.optim.Optimizer.add_param_group`."""
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a copy of ``state_dict``; the state keeps its precision."""
        super().load_state_dict(state_dict)
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(keys, params, strict=True):
            # torch casts what it loads to the parameter's type, which would round the state of bfloat16 weights.
            for name, saved in state_dict["state"].get(key, {}).items():
                dtype = torch.float32 if name == "step" else state_dtype(param)
                self.state[param][name] = torch.as_tensor(saved).to(param.device, dtype, copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._forget()

    def _forget(self) -> None:
        self._buckets: dict[int, tuple[list[Tensor], tuple[Any, ...], list[Bucket]]] = {}

    def _update(self, bucket: Bucket, group: dict[str, Any]) -> None:
        bucket.steps.add_(1)
        params = [local(param) for param in bucket.params]
        vectors = flat(params), flat([local(param.grad) for param in bucket.params if param.grad is not None])
        norm = NORMS[self.measure(group).name]
        several = len(bucket.tiles) > 1
        if bucket.scaled:
            if several:
                bucket.norms.zero_()
            for tile in bucket.tiles:
                self._read(tile, bucket, group, vectors)
                self.direct(tile, group, advance=True)
                norm.measure(tile, merge=several)
            if bucket.layout is not None:
                merge_over_shards(bucket, largest=self.measure(group).name == "max")
            # All at once: a small model has few entries but many rows, columns and tensors.
            decay = group["weight_decay"] if bucket.decayed else 0.0
            bucket.ratios.copy_(self.ratios(bucket.norms[0], bucket.norms[1], group, decay))
        # Looking is worth its price where a pass over the entries costs more.
        look = bucket.scaled and bucket.looks and not group["capturable"]
        finite, tame = self.look(bucket, group) if look else (False, False)
        for tile in bucket.tiles:
            if several or not bucket.scaled:
                self._read(tile, bucket, group, vectors)
                if not (bucket.scaled and bucket.keeps):
                    self.direct(tile, group, advance=not bucket.scaled)
            self.scale(tile, group, finite=finite, tame=tame)
            self._add(tile, bucket, group, params, vectors[0])

    def _read(self, tile: Tile, bucket: Bucket, group: dict[str, Any], vectors: tuple[Tensor, Tensor]) -> None:
        weights, gradients = vectors
        if len(bucket.tiles) > 1:
            weights, gradients = weights[tile.start : tile.end], gradients[tile.start : tile.end]
        tile.weight, tile.gradient = weights.to(tile.out.dtype), gradients.to(tile.out.dtype)
        tile.decay = group["weight_decay"] if bucket.decayed else 0.0
        tile.alone = (
            len(bucket.params) == 1 and weights.dtype == tile.out.dtype and local(bucket.params[0]).is_contiguous()
        )
        tile.multiplier = None

    def _add(self, tile: Tile, bucket: Bucket, group: dict[str, Any], params: list[Tensor], weights: Tensor) -> None:
        update, factor = self.move(tile, group)
        tile.weight = tile.gradient = update[:0]
        if len(params) == 1 and params[0].is_contiguous():
            here = weights if len(bucket.tiles) == 1 else weights[tile.start : tile.end]
            if tile.multiplier is None:
                here.add_(update, alpha=factor)
            else:
                here.addcmul_(update, tile.multiplier, value=factor)
        elif bucket.fused and _fused_sgd is not None and _all_plain(params, update):
            # One call for all tensors.
            _fused_sgd(
                params,
                bucket.views(update, params),
                [],
                weight_decay=0.0,
                momentum=0.0,
                lr=-factor,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
        else:
            torch._foreach_add_(params, bucket.views(update, params), alpha=factor)

    def _share_memory(self) -> None:
        """Have all buckets of a device and type work in the same memory."""
        every = [bucket for _, _, buckets in self._buckets.values() for bucket in buckets]
        needs: dict[tuple[torch.device, torch.dtype], tuple[int, int]] = {}
        for bucket in every:
            room, widest = needs.get(bucket.kind, (0, 0))
            needs[bucket.kind] = max(room, bucket.room), max(widest, bucket.widest)
        memory = {
            (device, dtype): (
                torch.empty(room, device=device, dtype=dtype),
                torch.empty(2, widest, device=device, dtype=dtype),
            )
            for (device, dtype), (room, widest) in needs.items()
        }
        for bucket in every:
            bucket.work_in(*memory[bucket.kind])

    def _buckets_of(self, index: int, group: dict[str, Any]) -> list[Bucket]:
        """The buckets of a group; built anew when other parameters have gradients than at the step before."""
        params = [param for param in group["params"] if param.grad is not None]
        options = group["ratio_from_ndim"], group["decay_from_ndim"], group["foreach"], self.measure(group)
        known, how, buckets = self._buckets.get(index, ([], (), []))
        if how != options or len(known) != len(params) or any(a is not b for a, b in zip(known, params, strict=True)):
            members: dict[tuple[Any, ...], list[Tensor]] = {}
            for position, param in enumerate(param for param in params if param.numel() > 0):
                large = param.numel() > extent_on(param.device).small * pieces_of(param)
                alone = position if large or group["foreach"] is False else None
                scaled, decayed = (param.ndim >= bound for bound in options[:2])
                key = scaled, decayed, alone, self._steps(param), param.dtype, param.device, layout_of(param)
                members.setdefault(key, []).append(param)
            buckets = [self._bucket(sorted(some, key=_shape), group, *key[:2]) for key, some in members.items()]
            self._buckets[index] = params, options, buckets
            self._share_memory()
        return buckets

    def _steps(self, param: Tensor) -> float:
        state = self.state.get(param, {})
        return float(state["step"]) if "step" in state else 0.0

    def _bucket(self, params: list[Tensor], group: dict[str, Any], scaled: bool, decayed: bool) -> Bucket:
        if any(param.grad is not None and param.grad.is_sparse for param in params):
            raise RuntimeError(f"{type(self).__name__} needs dense gradients; build the embedding with sparse=False")
        for param in params:
            check_layout(param)
        pieces = [local(param) for param in params]
        dtype, device = state_dtype(params[0]), pieces[0].device
        vectors = []
        for name in self.state_names:
            kept = [self.state[param].get(name) for param in params]
            vector = flat(
                [
                    torch.zeros(piece.shape, dtype=dtype, device=device) if old is None else local(old).contiguous()
                    for piece, old in zip(pieces, kept, strict=True)
                ]
            )
            vectors.append(vector)
            for param, view in zip(params, unflatten(vector, pieces), strict=True):
                self.state[param][name] = like_param(view, param)
        steps = torch.full((len(params),), self._steps(params[0]), device=device)
        for param, count in zip(params, steps.unbind(), strict=True):
            self.state[param]["step"] = count
        extent, measure = extent_on(device), self.measure(group)
        stacks = stacks_of([piece.shape for piece in pieces], measure.by_line, measure.inner)
        tiled = group["foreach"] is not False and pieces[0].is_contiguous()
        return Bucket(
            params=params,
            states=vectors,
            steps=steps,
            scaled=scaled,
            decayed=decayed,
            fused=group["foreach"] is not False,
            stacks=stacks,
            tiles=tiles_of(stacks, extent.tile if tiled else None),
            keeps=not tiled or vectors[0].numel() <= extent.block,
            layout=layout_of(params[0]),
        )


def check_size(name: str, value: Any) -> None:
    """Refuse what is not a finite number of at least 0.

    Raises:
        ValueError: with the name and the value.
    """
    if not 0.0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def _all_plain(params: list[Tensor], update: Tensor) -> bool:
    return (
        update.device.type in ("cpu", "cuda")
        and params[0].dtype == update.dtype
        and all(map(Tensor.is_contiguous, params))
    )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
