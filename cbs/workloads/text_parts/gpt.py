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
        biases: whether linear layers and norms have biases, as those of GPT-2 do.
    """

    width: int
    layers: int
    heads: int
    context: int
    biases: bool = False

    @property
    def head_size(self) -> int:
        """Entries of a query or key."""
        return self.width // self.heads

    def parameters(self, vocab_size: int) -> int:
        r"""Parameter count: :math:`(V + T) d + L (12 d^2 + 2 d) + d`, the head being the token embedding, and
        :math:`11 L d + d` biases."""
        block = 12 * self.width**2 + (13 if self.biases else 2) * self.width
        return (vocab_size + self.context) * self.width + self.layers * block + (2 if self.biases else 1) * self.width


SIZES: dict[str, GPTShape] = {
    "30k": GPTShape(width=32, layers=2, heads=2, context=32),
    "200k": GPTShape(width=64, layers=4, heads=4, context=64),
    "3m": GPTShape(width=256, layers=4, heads=4, context=128),
    "gpt2-small": GPTShape(width=768, layers=12, heads=12, context=1024, biases=True),
    "gpt2-medium": GPTShape(width=1024, layers=24, heads=16, context=1024, biases=True),
    "gpt2-large": GPTShape(width=1280, layers=36, heads=20, context=1024, biases=True),
    "gpt2-xl": GPTShape(width=1600, layers=48, heads=25, context=1024, biases=True),
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
    Models are Unsupervised Multitask Learners"), with biases or without.

    Initialisation: both embeddings :math:`N(0, 0.02^2)`; matrices :math:`N(0, 1/fan\\_in)`, those that write into the
    residual stream divided by :math:`\\sqrt{2L}` besides, so that its variance does not grow with the depth L;
    LayerNorm gains 1, biases 0. With ``fixed_std`` matrices start as :math:`N(0, 0.02^2)` instead, those into the
    residual stream divided as said: the initialisation of GPT-2 and nanoGPT.

    In muP the initialisation is the same. With r the ratio of the width to that of the base model, the logits are
    divided by r, those of attention are :math:`\\sqrt{h_0}\\, q \\cdot k / h` with h and :math:`h_0` the head sizes of
    this and of the base model, and :meth:`widths` lets the learning rates follow r.

    Args:
        shape: width, layers, heads and context.
        vocab_size: number of token ids.
        base: the base model of muP; ``None`` for the standard parametrization.
        fixed_std: whether matrices start with a standard deviation of 0.02 whatever their width.
    """

    def __init__(
        self, shape: GPTShape, vocab_size: int, base: BaseModel | None = None, fixed_std: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self.width_ratio = shape.width / base.width if base is not None else 1.0
        scale = attention_scale(shape.head_size, base)
        self.tokens = nn.Embedding(vocab_size, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(TransformerBlock(shape, scale) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=shape.biases)
        self._initialise(fixed_std)
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
        return model_widths(self, self.width_ratio)

    def _initialise(self, fixed_std: bool) -> None:
        depth_scale = 1.0 / math.sqrt(2.0 * self.shape.layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=EMBEDDING_STD)
            elif isinstance(module, nn.Linear):
                scale = depth_scale if name.endswith("_out") else 1.0
                std = EMBEDDING_STD if fixed_std else 1.0 / math.sqrt(module.in_features)
                nn.init.normal_(module.weight, std=scale * std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def model_widths(model: nn.Module, ratio: float) -> dict[str, Width]:
    """How every parameter of a language model grows with its width: its ``head``, tied to the embedding or not, is the
    output, other matrices of linear layers are hidden, the rest is input."""
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    head = model.get_submodule("head").weight
    kinds: dict[str, Kind] = {
        name: "output" if param is head else "hidden" if id(param) in linear else "input"
        for name, param in model.named_parameters()
    }
    return {name: Width(kind=kind, ratio=ratio) for name, kind in kinds.items()}


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

    def __init__(self, shape: GPTShape, scale: float | None = None) -> None:
        super().__init__()
        width, biases = shape.width, shape.biases
        self.heads = shape.heads
        self.scale = scale
        self.attention_norm = nn.LayerNorm(width, bias=biases)
        self.attention_qkv = nn.Linear(width, 3 * width, bias=biases)
        self.attention_out = nn.Linear(width, width, bias=biases)
        self.mlp_norm = nn.LayerNorm(width, bias=biases)
        self.mlp_in = nn.Linear(width, 4 * width, bias=biases)
        self.mlp_out = nn.Linear(4 * width, width, bias=biases)

    def forward(self, x: Tensor, sequences: int) -> Tensor:
        """Shape ``[sequences * tokens, width]`` in and out."""
        rows, width = x.shape
        qkv = self.attention_qkv(self.attention_norm(x))
        heads = qkv.view(sequences, rows // sequences, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, width))
        return x + self.mlp_out(gelu(self.mlp_in(self.mlp_norm(x))))
