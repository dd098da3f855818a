"""A decoder-only transformer, the same code from thirty thousand parameters to GPT-2 Large."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from cbs.optimizers.widths import Kind, Width

EMBEDDING_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class GPTShape:
    """Everything about a model but its vocabulary.

    Attributes:
        width: entries of the residual stream per token.
        layers: number of blocks.
        heads: attention heads per block; must divide ``width``.
        context: longest sequence, in tokens.
    """

    width: int
    layers: int
    heads: int
    context: int

    @property
    def head_size(self) -> int:
        """Entries of a query or key."""
        return self.width // self.heads

    def parameters(self, vocab_size: int) -> int:
        r"""Parameter count: :math:`(V + T) d + L (12 d^2 + 2 d) + d`, the head being the token embedding."""
        block = 12 * self.width**2 + 2 * self.width
        return (vocab_size + self.context) * self.width + self.layers * block + self.width


SIZES: dict[str, GPTShape] = {
    "30k": GPTShape(width=32, layers=2, heads=2, context=32),
    "200k": GPTShape(width=64, layers=4, heads=4, context=64),
    "3m": GPTShape(width=256, layers=4, heads=4, context=128),
    "gpt2-small": GPTShape(width=768, layers=12, heads=12, context=1024),
    "gpt2-medium": GPTShape(width=1024, layers=24, heads=16, context=1024),
    "gpt2-large": GPTShape(width=1280, layers=36, heads=20, context=1024),
}
"""Shapes by name: named after their size with 128 tokens, or those of Radford et al. 2019."""


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """The model that muP starts from; see :mod:`cbs.optimizers.widths`.

    Attributes:
        width: width at which muP and the standard parametrization are the same.
        head_size: head size at which their attention logits are.
    """

    width: int
    head_size: int


class GPT(nn.Module):
    """Pre-LN transformer with learned positions and a head tied to the token embedding (Radford et al. 2019, "Language
    Models are Unsupervised Multitask Learners"), without biases anywhere.

    Initialisation: both embeddings :math:`N(0, 0.02^2)`; matrices :math:`N(0, 1/fan\\_in)`, those that write into the
    residual stream divided by :math:`\\sqrt{2L}` besides, so that its variance does not grow with the depth L;
    LayerNorm gains 1.

    In muP the initialisation is the same. With r the ratio of the width to that of the base model, the logits are
    divided by r, those of attention are :math:`\\sqrt{h_0}\\, q \\cdot k / h` with h and :math:`h_0` the head sizes of
    this and of the base model, and :meth:`widths` lets the learning rates follow r.

    Args:
        shape: width, layers, heads and context.
        vocab_size: number of token ids.
        base: the base model of muP; ``None`` for the standard parametrization.
    """

    def __init__(self, shape: GPTShape, vocab_size: int, base: BaseModel | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.width_ratio = shape.width / base.width if base is not None else 1.0
        scale = attention_scale(shape.head_size, base)
        self.tokens = nn.Embedding(vocab_size, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(TransformerBlock(shape.width, shape.heads, scale) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self._initialise()
        # On the meta device a Linear draws no random numbers.
        self.head = nn.Linear(shape.width, vocab_size, bias=False, device="meta")
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Next-token logits.

        Args:
            ids: token ids, shape ``[sequences, tokens]`` with at most ``context`` tokens.

        Returns:
            Shape ``[sequences, tokens, vocab_size]``; position ``t`` depends on tokens ``0..t`` alone.
        """
        sequences, length = ids.shape
        places = torch.arange(length, device=ids.device)[None]
        x = (self.tokens(ids) + self.positions(places)).view(-1, self.shape.width)
        for block in self.blocks:
            x = block(x, sequences)
        x = self.norm(x)
        if self.width_ratio != 1.0:
            x = x / self.width_ratio
        return self.head(x).view(sequences, length, -1)

    def widths(self) -> dict[str, Width]:
        """How every parameter grows with the width; the tied head counts as the output it is."""
        tied, linear = self.tokens.weight, {id(m.weight) for m in self.modules() if isinstance(m, nn.Linear)}
        kinds: dict[str, Kind] = {
            name: "output" if param is tied else "hidden" if id(param) in linear else "input"
            for name, param in self.named_parameters()
        }
        return {name: Width(kind=kind, ratio=self.width_ratio) for name, kind in kinds.items()}

    def _initialise(self) -> None:
        depth_scale = 1.0 / math.sqrt(2.0 * self.shape.layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=EMBEDDING_STD)
            elif isinstance(module, nn.Linear):
                scale = depth_scale if name.endswith("_out") else 1.0
                nn.init.normal_(module.weight, std=scale / math.sqrt(module.in_features))


def attention_scale(head_size: int, base: BaseModel | None) -> float | None:
    """What q.k is multiplied by; ``None`` for the standard one over the root of the head size."""
    if base is None or base.head_size == head_size:
        return None
    return math.sqrt(base.head_size) / head_size


class TransformerBlock(nn.Module):
    """Causal self-attention and a four times wider GELU network, each added to the residual stream.

    The residual stream is kept as ``[sequences * tokens, width]``: on small models the time goes into dispatch, and a
    product of two matrices takes fewer operations than one of a matrix and a three-dimensional tensor.
    """

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, sequences: int) -> Tensor:
        """Shape ``[sequences * tokens, width]`` in and out."""
        rows, width = x.shape
        qkv = self.attention_qkv(self.attention_norm(x))
        heads = qkv.view(sequences, rows // sequences, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, width))
        return x + self.mlp_out(gelu(self.mlp_in(self.mlp_norm(x))))
