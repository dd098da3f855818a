"""``nn.Embedding``: gradients of the rows that each group looked up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, accumulator
from cbs.noise_scale.layers.layer import Layer

DENSE_ADVANTAGE = 4
"""Rows of tables that may be written per row looked up, before sorting the lookups is the cheaper way."""


class EmbeddingWeight(Contribution):
    """Contributions of groups to a table: output gradients added up by id.

    Args:
        ids: shape ``[groups, rows]``.
        gradients: gradients of the outputs, shape ``[groups, rows, width]``.
        entries: number of ids.
        padding: id without a gradient; -1 if there is none.
    """

    def __init__(self, ids: Tensor, gradients: Tensor, entries: int, padding: int) -> None:
        self.ids = ids
        self.gradients = gradients
        self.groups = ids.shape[0]
        self.nbytes = entries * gradients.shape[2] * gradients.element_size()
        self._entries = entries
        self._padding = padding

    def dense(self, start: int, stop: int) -> Tensor:
        tables = torch.ops.aten.embedding_dense_backward(
            self.gradients[start:stop], self._distinct(start, stop), (stop - start) * self._entries, -1, False
        ).unflatten(0, (stop - start, self._entries))
        if self._padding >= 0:
            tables[:, self._padding] = 0
        return tables

    def total(self) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(self.gradients, self.ids, self._entries, self._padding, False)

    def squared_norm(self) -> Tensor | None:
        """Squared norm of the rows that were looked up, after adding up those of equal id within a group."""
        if self.groups * self._entries <= DENSE_ADVANTAGE * self.ids.numel():
            return None
        ids, order = self._distinct(0, self.groups).flatten().sort()
        segments = torch.zeros_like(ids)
        torch.cumsum(ids[1:] != ids[:-1], 0, out=segments[1:])
        gradients = self.gradients.flatten(0, 1)
        sums = gradients.new_zeros(gradients.shape, dtype=accumulator(gradients.dtype))
        rows = gradients[order].to(sums.dtype)
        if self._padding >= 0:
            rows.masked_fill_((ids % self._entries == self._padding)[:, None], 0)
        return torch.linalg.vector_norm(sums.index_add_(0, segments, rows)).square()

    def _distinct(self, start: int, stop: int) -> Tensor:
        """Ids that are told apart between groups."""
        if stop - start == 1:
            return self.ids[start:stop]
        offsets = torch.arange(stop - start, device=self.ids.device) * self._entries
        return self.ids[start:stop] + offsets[:, None]


@LAYERS.register("embedding")
class Embedding(Layer):
    """Watches an ``nn.Embedding``."""

    types = (nn.Embedding,)
    names = ("weight",)

    @classmethod
    def refuse(cls, module: nn.Module) -> str | None:
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq=True makes the gradient of an example depend on the others"
        if module.sparse:
            return "sparse=True gives sparse gradients"
        return None

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        weight = self.value("weight")
        return embedding(input, weight, module.padding_idx, module.max_norm, module.norm_type), (input,)

    def contributions(
        self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor
    ) -> tuple[dict[str, Contribution], None]:
        ids = saved[0].reshape(groups, -1)
        gradients = gradient.reshape(groups, ids.shape[1], -1)
        padding = -1 if self.module.padding_idx is None else self.module.padding_idx
        return {"weight": EmbeddingWeight(ids, gradients, self.module.num_embeddings, padding)}, None
