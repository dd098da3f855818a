"""A decoder-only transformer like Llama: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from cbs.optimizers.widths import Width
from cbs.workloads.text_parts.gpt import EMBEDDING_STD, BaseModel, GPTShape, attention_scale, initialise, model_widths

EPS = 1e-6  # as LlamaConfig of transformers


@dataclass(frozen=True, kw_only=True)
class LlamaShape(GPTShape):
    r"""The shape of a model, without its vocabulary, with further attributes.

    Attributes:
        kv_heads: number of key and value heads; must divide ``heads``; ``None`` for ``heads``.
        mlp_width: size of the hidden layer of a block; ``None`` for 8/3 of the width, rounded up to a multiple of 16.
        tied: whether the head is the token embedding.
        rotary_base: :math:`\theta` of the rotary positions.
    """

    kv_heads: int | None = None
    mlp_width: int | None = None
    tied: bool = False
    rotary_base: float = 10_000.0

    @property
    def hidden(self) -> int:
        """Size of the hidden layer of a block."""
        # 8/3 of the width, so that three matrices have the parameters of a GPT's two (Touvron et al. 2023, arXiv
        # 2302.13971), rounded up to a multiple of 16, as the authors do to one of 256.
        return self.mlp_width or -(-8 * self.width // 48) * 16

    @property
    def groups(self) -> int:
        """Number of key and value heads."""
        return self.kv_heads or self.heads

    def parameters(self, vocab_size: int) -> int:
        r"""Return the parameter count: :math:`2 V d + L (2 d^2 + 2 d d_{kv} + 3 d h + 2 d) + d`.

        A tied head has :math:`V d` fewer.
        """
        block = 2 * self.width**2 + 2 * self.width * self.groups * self.head_size
        block += 3 * self.width * self.hidden + 2 * self.width
        return (1 if self.tied else 2) * vocab_size * self.width + self.layers * block + self.width


# Shapes by name: small ones, named after their parameter count with 128 tokens, and those of Zhao et al. 2024 (arXiv
# 2403.03507, released configurations), with 32,000 tokens.
LLAMA_SIZES: dict[str, LlamaShape] = {
    "llama-30k": LlamaShape(width=32, layers=2, heads=2, context=32, tied=True),
    "llama-200k": LlamaShape(width=64, layers=4, heads=4, context=64, kv_heads=2, tied=True),
    "llama-60m": LlamaShape(width=512, layers=8, heads=8, context=1024),
    "llama-130m": LlamaShape(width=768, layers=12, heads=12, context=1024),
    "llama-350m": LlamaShape(width=1024, layers=24, heads=16, context=1024),
    "llama-1b": LlamaShape(width=2048, layers=24, heads=32, context=1024, mlp_width=5461),
}


class Llama(nn.Module):
    """The architecture of Touvron et al. 2023 (arXiv 2302.13971), with grouped queries (Ainslie et al. 2023, arXiv
    2305.13245).

    Initialisation and muP are those of :class:`~cbs.workloads.text_parts.gpt.GPT`; an untied head is initialized like
    the embedding.

    Args:
        shape: see :class:`LlamaShape`.
        vocab_size: number of token ids.
        base: the base model of muP; ``None`` for the standard parametrization.
        fixed_std: whether all matrices are initialized as :math:`N(0, 0.02^2)`, as in the released code.
    """

    rotations: Tensor

    def __init__(
        self, shape: LlamaShape, vocab_size: int, base: BaseModel | None = None, fixed_std: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self.width_ratio = shape.width / base.width if base is not None else 1.0
        self.tokens = nn.Embedding(vocab_size, shape.width)
        self.blocks = nn.ModuleList(
            LlamaBlock(shape, attention_scale(shape.head_size, base)) for _ in range(shape.layers)
        )
        self.norm = nn.RMSNorm(shape.width, eps=EPS)
        initialise(self, None if fixed_std else shape.layers, fixed_std)
        if shape.tied:
            self.head = nn.Linear(shape.width, vocab_size, bias=False, device="meta")
            self.head.weight = self.tokens.weight
        else:
            self.head = nn.Linear(shape.width, vocab_size, bias=False)
            nn.init.normal_(self.head.weight, std=EMBEDDING_STD)
        self.register_buffer("rotations", rotary_angles(shape), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return next-token logits, shape ``[sequences, tokens, vocab_size]``, for ids ``[sequences, tokens]``."""
        sequences, length = ids.shape
        x = self.tokens(ids).view(-1, self.shape.width)
        turns = self.rotations[:, :length].to(x.dtype)
        for block in self.blocks:
            x = block(x, sequences, turns)
        x = self.norm(x)
        if self.width_ratio != 1.0:
            x = x / self.width_ratio
        return self.head(x).view(sequences, length, -1)

    def widths(self) -> dict[str, Width]:
        """Return how every parameter grows with the width."""
        return model_widths(self, self.width_ratio)


def rotary_angles(shape: LlamaShape) -> Tensor:
    """Return cosines and sines of position times frequency (Su et al. 2021, arXiv 2104.09864): ``[2, context, head]``;
    frequency i of a head of size h is :math:`\\theta^{-2i/h}` and belongs to its entries i and i + h/2."""
    half = shape.head_size // 2
    frequencies = shape.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(shape.context, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat([angles, angles], 1)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate each pair of entries (i, i + half) of the last dimension; ``x`` is ``[..., tokens, head]``."""
    first, second = x.chunk(2, dim=-1)
    return x * turns[0] + torch.cat([-second, first], -1) * turns[1]


class LlamaBlock(nn.Module):
    """Causal self-attention with grouped queries and a SwiGLU network, each added to the residual stream."""

    def __init__(self, shape: LlamaShape, scale: float | None) -> None:
        super().__init__()
        self.heads, self.groups, self.scale = shape.heads, shape.groups, scale
        keys = shape.groups * shape.head_size
        self.attention_norm = nn.RMSNorm(shape.width, eps=EPS)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, keys, bias=False)
        self.value = nn.Linear(shape.width, keys, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.mlp_norm = nn.RMSNorm(shape.width, eps=EPS)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.mlp_in = nn.Linear(shape.width, shape.hidden, bias=False)
        self.mlp_out = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, sequences: int, turns: Tensor) -> Tensor:
        """Map hidden states of shape ``[sequences * tokens, width]`` to the same shape."""
        rows, width = x.shape
        normed = self.attention_norm(x)
        query, key, value = (
            layer(normed).view(sequences, rows // sequences, -1, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = rotated(query, turns), rotated(key, turns)
        if self.groups < self.heads:
            key, value = (each.repeat_interleave(self.heads // self.groups, 1) for each in (key, value))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, width))
        normed = self.mlp_norm(x)
        return x + self.mlp_out(silu(self.gate(normed)) * self.mlp_in(normed))
