"""``nn.Embedding``: gradients of the rows that each group looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, product
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.shared import are_places

PAIRS_PER_ID = 8
"""Pairs of rows that a group may compare, per row of the table whose gradient need not be written."""


class EmbeddingWeight(Contribution):
    """Contributions of groups to a table: output gradients added up by id.

    Args:
        ids: shape ``[groups, rows]``.
        gradients: gradients of the outputs, shape ``[groups, rows, width]``.
        entries: number of ids.
    """

    def __init__(self, ids: Tensor, gradients: Tensor, entries: int) -> None:
        self.ids = ids
        self.gradients = gradients
        self.groups = ids.shape[0]
        self.nbytes = entries * gradients.shape[2] * gradients.element_size()
        self._entries = entries

    def dense(self, start: int, stop: int) -> Tensor:
        groups, ids = stop - start, self.ids[start:stop]
        apart = ids + torch.arange(0, groups * self._entries, self._entries, device=ids.device)[:, None]
        tables = torch.ops.aten.embedding_dense_backward(
            self.gradients[start:stop], apart, groups * self._entries, -1, False
        )
        return tables.view(groups, self._entries, -1)

    def total(self) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(self.gradients, self.ids, self._entries, -1, False)

    def merged(self, by: int) -> Contribution:
        ids, gradients = (part.unflatten(0, (-1, by)).flatten(1, 2) for part in (self.ids, self.gradients))
        return EmbeddingWeight(ids, gradients, self._entries)

    def square(self) -> Tensor | None:
        r"""Of every two rows that looked up the same: :math:`\sum_j \sum_{tu} [i_{jt} = i_{ju}] (\delta_{jt} \cdot
        \delta_{ju})`."""
        if self.ids.shape[1] ** 2 > PAIRS_PER_ID * self._entries:
            return None
        return product(self.ids[:, :, None] == self.ids[:, None], torch.bmm(self.gradients, self.gradients.mT))


@LAYERS.register("embedding")
class Embedding(Layer):
    """Watches an ``nn.Embedding``."""

    types = (nn.Embedding,)
    names = ("weight",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._places: dict[torch.Size, bool] = {}

    @classmethod
    def refuse(cls, module: nn.Module) -> str | None:
        if module.scale_grad_by_freq:
            return "has scale_grad_by_freq=True, which mixes the examples of a batch"
        if module.sparse:
            return "has sparse=True, and sparse gradients cannot be split"
        return None

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        weight = self.value("weight")
        output = embedding(input, weight, module.padding_idx, module.max_norm, module.norm_type)  # type: ignore[arg-type]
        return output, (input,)

    def watch(self, input: Tensor) -> Tensor:
        current = self.recorder.enter(self.name)
        if current is not None:
            if input.shape not in self._places:
                self._places[input.shape] = are_places(input, current.examples)
            if self._places[input.shape]:
                return self.sharing.run(self.original, input)  # type: ignore[no-any-return]
        return super().watch(input)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        ids = saved[0].reshape(groups, -1)
        gradients = gradient.reshape(groups, ids.shape[1], -1)
        if self.module.padding_idx is not None:
            gradients = gradients.masked_fill((ids == self.module.padding_idx)[..., None], 0)
        return {"weight": EmbeddingWeight(ids, gradients, self.module.num_embeddings)}
