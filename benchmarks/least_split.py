"""The floor under ``split`` on the GPT: gradients of two groups and their norms, made by autograd nodes in Python.

One node a layer writes out the gradients of both halves of the batch and adds them up. Nothing is checked, and the
uses of the tied table are not put together.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

HALVES = 2


class LeastSplit:
    """Lets the layers of a model write out the gradients of two groups in its backward passes."""

    def __init__(self, model: nn.Module) -> None:
        self.written: list[Tensor] = []
        self.parameters = list(model.parameters())
        for module in model.modules():
            for kind, node, arguments in NODES:
                if type(module) is kind:
                    module.forward = MethodType(_forward(node, arguments, self.written), module)  # type: ignore[method-assign]

    def step(self) -> tuple[float, float]:
        """Squared norms of the two groups' gradients, added up, and of the whole gradient."""
        groups = torch.stack([torch.linalg.vector_norm(value) for value in self.written]).square().sum()
        whole = [torch.linalg.vector_norm(tensor.grad) for tensor in self.parameters if tensor.grad is not None]
        self.written.clear()
        return float(groups), float(torch.stack(whole).square().sum())


class LinearNode(Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, written: list[Tensor], weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(input, weight)
        ctx.written = written
        return nn.functional.linear(input, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        input, weight = ctx.saved_tensors
        sides = (side.reshape(HALVES, -1, side.shape[-1]) for side in (gradient, input))
        groups = torch.bmm(next(sides).mT, next(sides))
        ctx.written.append(groups)
        return gradient @ weight, None, groups.sum(0)


class LayerNormNode(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, written: list[Tensor], weight: Tensor, shape: tuple[int, ...], eps: float
    ) -> Tensor:
        output, mean, deviation = torch.native_layer_norm(input, shape, weight, None, eps)
        ctx.save_for_backward(input, mean, deviation, weight)
        ctx.written, ctx.shape = written, shape
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *rows, weight = ctx.saved_tensors
        halves = zip(*(side.chunk(HALVES) for side in (gradient, *rows)), strict=True)
        kernel, mask = torch.ops.aten.native_layer_norm_backward, [True, True, False]
        found = [kernel(half, x, ctx.shape, mean, by, weight, None, mask) for half, x, mean, by in halves]
        groups = torch.stack([own for _, own, _ in found])
        ctx.written.append(groups)
        return torch.cat([own for own, _, _ in found]), None, groups.sum(0), None, None


class EmbeddingNode(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, written: list[Tensor], weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(ids)
        ctx.written, ctx.rows = written, len(weight)
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (ids,) = ctx.saved_tensors
        halves = zip(gradient.chunk(HALVES), ids.chunk(HALVES), strict=True)
        kernel = torch.ops.aten.embedding_dense_backward
        groups = torch.stack([kernel(half, own, ctx.rows, -1, False) for half, own in halves])
        ctx.written.append(groups)
        return None, None, groups.sum(0)


NODES: list[tuple[type[nn.Module], Any, tuple[str, ...]]] = [
    (nn.Linear, LinearNode, ()),
    (nn.LayerNorm, LayerNormNode, ("normalized_shape", "eps")),
    (nn.Embedding, EmbeddingNode, ()),
]


def _forward(node: Any, arguments: tuple[str, ...], written: list[Tensor]) -> Any:
    def forward(module: nn.Module, input: Tensor) -> Tensor:
        if isinstance(module, nn.Embedding) and len(input) == 1:  # positions: the same for all examples
            return nn.functional.embedding(input, module.weight)
        return node.apply(input, written, module.weight, *(getattr(module, name) for name in arguments))  # type: ignore[no-any-return]

    return forward
