"""A decoder-only transformer, from thirty thousand parameters to GPT-2 XL."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from cbs.optimizers.widths import Kind, Width

EMBEDDING_STD = 0.02  # of all matrices of GPT-2 (Radford et al. 2019)


@dataclass(frozen=True, kw_only=True)
class GPTShape:
    """The shape of a model, without its vocabulary.

    Attributes:
        width: size of the residual stream per token.
        layers: number of blocks.
        heads: attention heads per block; must divide ``width``.
        context: longest sequence, in tokens.
        biases: whether linear layers and norms have biases, as in GPT-2.
    """

    width: int
    layers: int
    heads: int
    context: int
    biases: bool = False

    @property
    def head_size(self) -> int:
        """Size of a query or key vector."""
        return self.width // self.heads

    def parameters(self, vocab_size: int) -> int:
        r"""Return the number of parameters: :math:`(V + T) d + L (12 d^2 + 2 d) + d` with a tied head.

        Biases add :math:`11 L d + d`.
        """
        block = 12 * self.width**2 + (13 if self.biases else 2) * self.width
        return (vocab_size + self.context) * self.width + self.layers * block + (2 if self.biases else 1) * self.width


# Shapes by name: named after their parameter count with 128 tokens, or those of Radford et al. 2019.
SIZES: dict[str, GPTShape] = {
    "30k": GPTShape(width=32, layers=2, heads=2, context=32),
    "200k": GPTShape(width=64, layers=4, heads=4, context=64),
    "3m": GPTShape(width=256, layers=4, heads=4, context=128),
    "gpt2-small": GPTShape(width=768, layers=12, heads=12, context=1024, biases=True),
    "gpt2-medium": GPTShape(width=1024, layers=24, heads=16, context=1024, biases=True),
    "gpt2-large": GPTShape(width=1280, layers=36, heads=20, context=1024, biases=True),
    "gpt2-xl": GPTShape(width=1600, layers=48, heads=25, context=1024, biases=True),
}


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """The base model of muP; see :mod:`cbs.optimizers.widths`.

    Attributes:
        width: width at which muP and the standard parametrization are the same.
        head_size: head size at which the attention logits are the same.
    """

    width: int
    head_size: int


class GPT(nn.Module):
    r"""Pre-LN transformer with learned positions and a head tied to the token embedding, with or without biases.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

    Initialisation: both embeddings :math:`N(0, 0.02^2)`; matrices :math:`N(0, 1/fan\_in)`, where those that write into
    the residual stream are also divided by :math:`\sqrt{2L}`, so that its variance does not grow with the depth L;
    LayerNorm gains 1, biases 0. With ``fixed_std`` matrices are initialized as :math:`N(0, 0.02^2)` instead, with the
    same division: the initialisation of GPT-2 and nanoGPT.

    In muP the initialisation is the same. With r the ratio of the width to that of the base model, the logits are
    divided by r, the attention logits are :math:`\sqrt{h_0}\, q \cdot k / h` with h and :math:`h_0` the head sizes of
    this model and the base model, and :meth:`widths` defines how the learning rates depend on r.

    Args:
        shape: width, layers, heads and context.
        vocab_size: number of token ids.
        base: the base model of muP; ``None`` for the standard parametrization.
        fixed_std: whether matrices are initialized with a standard deviation of 0.02 whatever their width.
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
        initialise(self, shape.layers, fixed_std)
        # On the meta device a Linear draws no random numbers.
        self.head = nn.Linear(shape.width, vocab_size, bias=False, device="meta")
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return next-token logits.

        Args:
            ids: token ids, shape ``[sequences, tokens]`` with at most ``context`` tokens.

        Returns:
            Logits, shape ``[sequences, tokens, vocab_size]``; position ``t`` depends only on tokens ``0..t``.
        """
        sequences, length = ids.shape
        positions = torch.arange(length, device=ids.device)[None]
        x = (self.tokens(ids) + self.positions(positions)).view(-1, self.shape.width)
        for block in self.blocks:
            x = block(x, sequences)
        x = self.norm(x)
        if self.width_ratio != 1.0:
            x = x / self.width_ratio
        return self.head(x).view(sequences, length, -1)

    def widths(self) -> dict[str, Width]:
        """Return how every parameter grows with the width; the tied head counts as output."""
        return model_widths(self, self.width_ratio)


def initialise(model: nn.Module, layers: int | None, fixed_std: bool) -> None:
    """Draw embeddings and matrices as :class:`GPT` says; ``layers`` is L, ``None`` for no division by it."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD)
        elif isinstance(module, nn.Linear):
            scale = 1.0 / math.sqrt(2.0 * layers) if layers and name.endswith("_out") else 1.0
            std = EMBEDDING_STD if fixed_std else 1.0 / math.sqrt(module.in_features)
            nn.init.normal_(module.weight, std=scale * std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def model_widths(model: nn.Module, ratio: float) -> dict[str, Width]:
    """Return how every parameter of a language model grows with its width.

    Its ``head``, tied to the embedding or not, is the output, other matrices of linear layers are hidden, the rest is
    input.
    """
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    head = model.get_submodule("head").weight
    kinds: dict[str, Kind] = {
        name: "output" if param is head else "hidden" if id(param) in linear else "input"
        for name, param in model.named_parameters()
    }
    return {name: Width(kind=kind, ratio=ratio) for name, kind in kinds.items()}


def attention_scale(head_size: int, base: BaseModel | None) -> float | None:
    """Return the factor of q.k in muP; ``None`` for the standard one over the root of the head size."""
    if base is None or base.head_size == head_size:
        return None
    return math.sqrt(base.head_size) / head_size


class TransformerBlock(nn.Module):
    """Causal self-attention and a GELU network of four times the width, each added to the residual stream.

    The residual stream has shape ``[sequences * tokens, width]``: small models spend their time on dispatch, and a
    product of two matrices takes fewer calls than one of a matrix and a three-dimensional tensor.
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
        """Map hidden states of shape ``[sequences * tokens, width]`` to the same shape."""
        rows, width = x.shape
        qkv = self.attention_qkv(self.attention_norm(x))
        heads = qkv.view(sequences, rows // sequences, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, width))
        return x + self.mlp_out(gelu(self.mlp_in(self.mlp_norm(x))))
