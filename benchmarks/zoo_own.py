"""Modules and loops that people write themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo_entry import (
    CLASSES,
    IMAGES,
    LANGUAGE,
    PLAIN,
    TOKENS,
    WIDTH,
    WORDS,
    Batch,
    Entry,
    embedding,
    head,
    linear,
    made,
    small,
    words,
)


class Standardised(nn.Conv2d):
    """Weights of mean 0 and variance 1 in every filter."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class LowRank(nn.Module):
    """A frozen linear layer and two bare factors beside it."""

    def __init__(self, rows: int, columns: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(rows, columns).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, rows) / 4)
        self.b = nn.Parameter(torch.randn(columns, rank) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + (x @ self.a.T) @ self.b.T * 2.0


class Merged(LowRank):
    """The same, merged into the weight before the examples are met."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.frozen.weight + self.b @ self.a, self.frozen.bias)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def symmetric() -> nn.Module:
    layer = nn.Linear(12, 12)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(12, CLASSES))


class Tied(nn.Module):
    """The output is the embedding, scaled, by hand."""

    def __init__(self, *, module: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if module else None
        self.scale = nn.Parameter(torch.ones(WORDS))
        if self.head is not None:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.tokens(x) * WIDTH**0.5).tanh()
        logits = h @ self.tokens.weight.T if self.head is None else self.head(h)
        return logits / WIDTH**0.5 * self.scale


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (x @ weight.T).square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        inner = 2 * gradient * (x @ weight.T)
        return inner @ weight, inner.T @ x


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -0.3 * gradient


def called(m: Any, x: Tensor) -> Tensor:
    """Its inner model is called with parameters that are scaled first."""
    return functional_call(m.inner, {name: value * m.gain for name, value in m.inner.named_parameters()}, (x,))


def einsum(m: Any, x: Tensor) -> Tensor:
    """Attention of bare tensors, with a bias that depends on the distance."""
    h = m.tokens(x)
    q, k, v = torch.einsum("btd,sdhe->sbhte", h, m.qkv)
    places = torch.arange(x.shape[1])
    bias = m.distance[:, places[:, None] - places + TOKENS - 1]
    weights = (torch.einsum("bhte,bhse->bhts", q, k) / 3 + bias).softmax(-1)
    return m.head(h + torch.einsum("bhts,bhse,hed->btd", weights, v, m.out))


def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A hook changes the gradient of an activation."""

    def formula(m: Any, x: Tensor) -> Tensor:
        hidden = m.first(x).tanh()
        if hidden.requires_grad:
            hidden.register_hook(change)
        return m.head(hidden)

    return formula


def halved_layer() -> nn.Module:
    """A hook halves the gradient of a parameter."""
    layer = nn.Linear(12, WIDTH)
    layer.weight.register_hook(lambda gradient: gradient / 2)
    return layer


def nested(m: Any, x: Tensor) -> Tensor:
    """Recomputed inside what is recomputed."""

    def block(x: Tensor) -> Tensor:
        return m.norm(checkpoint(m.inner, x, use_reentrant=False)).tanh()

    return m.head(checkpoint(block, x, use_reentrant=False))


def rms(m: Any, x: Tensor) -> Tensor:
    """A gain that is one more than its parameter, in double precision inside."""
    h = m.tokens(x)
    wide = h.double()
    wide = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return m.head((wide * (1.0 + m.gain.double())).to(h.dtype))


def capacity(m: Any, x: Tensor) -> Tensor:
    """Every expert takes the rows that score highest in the batch, and no others."""
    scores = m.gate(x).softmax(-1)
    values, rows = scores.T.topk(max(1, len(x) // 2))
    found = torch.einsum("kri,kio->kro", x[rows], m.experts) * values[..., None]
    return x.new_zeros(len(x), CLASSES).index_add(0, rows.flatten(), found.flatten(0, 1))


def packed(m: Any, x: Tensor) -> Tensor:
    """Sequences one after the other in a single row, told apart by a mask."""
    flat = m.tokens(x.reshape(1, -1))
    owner = torch.arange(x.numel()) // x.shape[1]
    mask = owner[:, None] == owner
    mixed = functional.scaled_dot_product_attention(flat, m.mix(flat), flat, attn_mask=mask)
    return m.head(flat + mixed).view(*x.shape, -1)


def prompted(m: Any, x: Tensor) -> Tensor:
    """Learned rows in front of those of every example."""
    hidden = m.first(x)[:, None]
    rows = torch.cat([m.prompt.expand(len(x), -1, -1), hidden], 1)
    weights = torch.einsum("bqd,bkd->bqk", hidden, rows).softmax(-1)
    return m.head((weights @ rows)[:, 0])


def several_lengths(examples: int, generator: torch.Generator) -> Batch:
    batch = words()(examples, generator)
    lengths = torch.randint(1, TOKENS + 1, (examples, 1), generator=generator)
    return {**batch, "mask": (torch.arange(TOKENS) < lengths).float()}


def over_words(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over the words that count, of all examples."""
    values = functional.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"], reduction="none")
    return (values * batch["mask"]).sum() / batch["mask"].sum()


def over_words_then_examples(model: nn.Module, batch: Batch) -> Tensor:
    values = functional.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"], reduction="none")
    return ((values * batch["mask"]).sum(1) / batch["mask"].sum(1)).mean()


def word_shares(batch: Batch) -> Tensor:
    counted = batch["mask"].sum(1)
    return counted / counted.sum()


def nano() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS))


TWO: dict[str, Any] = {"first": linear(12, WIDTH), "head": head()}  # Two layers

OWN = {
    "standardised weights": Entry(
        build=lambda: nn.Sequential(
            Standardised(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head(8)()
        ),
        **IMAGES,
    ),
    "low rank, bare factors": Entry(build=lambda: nn.Sequential(LowRank(12, 16), nn.Tanh(), LowRank(16, 5)), **PLAIN),
    "low rank, merged": Entry(build=lambda: nn.Sequential(Merged(12, 16), nn.Tanh(), Merged(16, 5)), **PLAIN),
    "parametrization, symmetric": Entry(build=symmetric, **PLAIN),
    "functional_call, scaled": Entry(
        build=made(called, inner=small(12, CLASSES), gain=lambda: nn.Parameter(torch.ones(()))), **PLAIN
    ),
    "tied by hand, scaled": Entry(build=lambda: Tied(module=False), **LANGUAGE),
    "tied modules, scaled": Entry(build=lambda: Tied(module=True), **LANGUAGE),
    "einsum attention": Entry(
        build=made(
            einsum,
            tokens=embedding,
            qkv=(3, WIDTH, 2, WIDTH // 2),
            out=(2, WIDTH // 2, WIDTH),
            distance=(2, 2 * TOKENS - 1),
            head=linear(WIDTH, WORDS),
        ),
        **LANGUAGE,
    ),
    "autograd function with a parameter": Entry(
        build=made(lambda m, x: m.head(Squared.apply(m.first(x).tanh(), m.weight)), weight=(WIDTH, WIDTH), **TWO),
        **PLAIN,
    ),
    "gradient reversal": Entry(build=made(lambda m, x: m.head(Reversed.apply(m.first(x).tanh())), **TWO), **PLAIN),
    "a hook halves an activation's gradient": Entry(build=made(hooked(lambda gradient: gradient / 2), **TWO), **PLAIN),
    "a hook normalises an activation's gradient": Entry(
        build=made(hooked(lambda gradient: gradient / gradient.norm()), **TWO), **PLAIN, only_check=True
    ),
    "a hook halves a parameter's gradient": Entry(
        build=made(lambda m, x: m.head(m.first(x).tanh()), first=halved_layer, head=head()), **PLAIN
    ),
    "checkpoint inside a checkpoint": Entry(
        build=made(nested, inner=small(12, WIDTH), norm=lambda: nn.LayerNorm(WIDTH), head=head()), **PLAIN
    ),
    "own norm in double precision": Entry(
        build=made(rms, tokens=embedding, head=linear(WIDTH, WORDS), gain=lambda: nn.Parameter(torch.zeros(WIDTH))),
        **LANGUAGE,
    ),
    "soft mixture of bare experts": Entry(
        build=made(
            lambda m, x: torch.einsum("bk,bi,kio->bo", m.gate(x).softmax(-1), x, m.experts),
            gate=linear(12, 4),
            experts=(4, 12, CLASSES),
        ),
        **PLAIN,
    ),
    "experts that choose rows": Entry(build=made(capacity, gate=linear(12, 2), experts=(2, 12, CLASSES)), **PLAIN),
    "sequences in one row": Entry(
        build=made(packed, tokens=embedding, mix=linear(WIDTH, WIDTH), head=linear(WIDTH, WORDS)), **LANGUAGE
    ),
    "learned prompt": Entry(build=made(prompted, prompt=(3, WIDTH), **TWO), **PLAIN),
    "masked, mean over words": Entry(build=nano, batch=several_lengths, loss=over_words, shares=word_shares),
    "masked, mean of means": Entry(build=nano, batch=several_lengths, loss=over_words_then_examples),
}
