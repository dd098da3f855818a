"""Modules and loops that people write themselves."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo_entry import CLASSES, TOKENS, WIDTH, WORDS, Batch, Entry, classify, features, words

PLAIN: dict[str, Any] = {"batch": features(12), "loss": classify}
LANGUAGE: dict[str, Any] = {"batch": words(), "loss": classify}


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


class Called(nn.Module):
    """Its inner model is called with parameters that are scaled first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        scaled = {name: value * self.gain for name, value in self.inner.named_parameters()}
        return functional_call(self.inner, scaled, (x,))


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


class Einsum(nn.Module):
    """Attention of bare tensors, with a bias that depends on the distance."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.qkv = nn.Parameter(torch.randn(3, WIDTH, heads, WIDTH // heads) / 4)
        self.out = nn.Parameter(torch.randn(heads, WIDTH // heads, WIDTH) / 4)
        self.distance = nn.Parameter(torch.randn(heads, 2 * TOKENS - 1))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        q, k, v = torch.einsum("btd,sdhe->sbhte", h, self.qkv)
        places = torch.arange(x.shape[1])
        bias = self.distance[:, places[:, None] - places + TOKENS - 1]
        weights = (torch.einsum("bhte,bhse->bhts", q, k) / 3 + bias).softmax(-1)
        return self.head(h + torch.einsum("bhts,bhse,hed->btd", weights, v, self.out))


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


class OwnFunction(nn.Module):
    """A parameter goes into an autograd function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Squared.apply(self.first(x).tanh(), self.weight))  # type: ignore[no-untyped-call]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -0.3 * gradient


class GradientReversal(nn.Module):
    """What comes before a function is trained against the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Reversed.apply(self.first(x).tanh()))  # type: ignore[no-untyped-call]


class HalvedActivations(nn.Module):
    """A hook halves the gradient of an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / 2)
        return self.head(hidden)


class NormalisedActivations(HalvedActivations):
    """A hook divides the gradient of an activation by its norm over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / gradient.norm())
        return self.head(hidden)


class HalvedParameters(HalvedActivations):
    """A hook halves the gradient of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight.register_hook(lambda gradient: gradient / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).tanh())


class Nested(nn.Module):
    """Recomputed inside what is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def block(self, x: Tensor) -> Tensor:
        return self.norm(checkpoint(self.inner, x, use_reentrant=False)).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


class RMS(nn.Module):
    """A gain that is one more than its parameter, in double precision inside."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.gain = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        wide = h.double()
        wide = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return self.head((wide * (1.0 + self.gain.double())).to(h.dtype))


class Mixture(nn.Module):
    """Experts of bare tensors, all of them for every row, weighted by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 4)
        self.experts = nn.Parameter(torch.randn(4, 12, CLASSES) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bk,bi,kio->bo", self.gate(x).softmax(-1), x, self.experts)


class Capacity(nn.Module):
    """Every expert takes the rows that score highest in the batch, and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 2)
        self.experts = nn.Parameter(torch.randn(2, 12, CLASSES) / 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        values, rows = scores.T.topk(max(1, len(x) // 2))
        found = torch.einsum("kri,kio->kro", x[rows], self.experts) * values[..., None]
        return x.new_zeros(len(x), CLASSES).index_add(0, rows.flatten(), found.flatten(0, 1))


class Packed(nn.Module):
    """Sequences one after the other in a single row, told apart by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.tokens(x.reshape(1, -1))
        owner = torch.arange(x.numel()) // x.shape[1]
        mask = owner[:, None] == owner
        mixed = functional.scaled_dot_product_attention(flat, self.mix(flat), flat, attn_mask=mask)
        return self.head(flat + mixed).view(*x.shape, -1)


class Prompted(nn.Module):
    """Learned rows in front of those of every example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.prompt = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)[:, None]
        rows = torch.cat([self.prompt.expand(len(x), -1, -1), hidden], 1)
        weights = torch.einsum("bqd,bkd->bqk", hidden, rows).softmax(-1)
        return self.head((weights @ rows)[:, 0])


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


OWN = {
    "standardised weights": Entry(
        build=lambda: nn.Sequential(
            Standardised(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, CLASSES),
        ),
        batch=features(3, 6, 6), loss=classify,
    ),
    "low rank, bare factors": Entry(build=lambda: nn.Sequential(LowRank(12, 16), nn.Tanh(), LowRank(16, 5)), **PLAIN),
    "low rank, merged": Entry(build=lambda: nn.Sequential(Merged(12, 16), nn.Tanh(), Merged(16, 5)), **PLAIN),
    "parametrization, symmetric": Entry(build=symmetric, **PLAIN),
    "functional_call, scaled": Entry(build=Called, **PLAIN),
    "tied by hand, scaled": Entry(build=lambda: Tied(module=False), **LANGUAGE),
    "tied modules, scaled": Entry(build=lambda: Tied(module=True), **LANGUAGE),
    "einsum attention": Entry(build=Einsum, **LANGUAGE),
    "autograd function with a parameter": Entry(build=OwnFunction, **PLAIN),
    "gradient reversal": Entry(build=GradientReversal, **PLAIN),
    "a hook halves an activation's gradient": Entry(build=HalvedActivations, **PLAIN),
    "a hook normalises an activation's gradient": Entry(build=NormalisedActivations, **PLAIN, only_check=True),
    "a hook halves a parameter's gradient": Entry(build=HalvedParameters, **PLAIN),
    "checkpoint inside a checkpoint": Entry(build=Nested, **PLAIN),
    "own norm in double precision": Entry(build=RMS, **LANGUAGE),
    "soft mixture of bare experts": Entry(build=Mixture, **PLAIN),
    "experts that choose rows": Entry(build=Capacity, **PLAIN),
    "sequences in one row": Entry(build=Packed, **LANGUAGE),
    "learned prompt": Entry(build=Prompted, **PLAIN),
    "masked, mean over words": Entry(build=nano, batch=several_lengths, loss=over_words, shares=word_shares),
    "masked, mean of means": Entry(build=nano, batch=several_lengths, loss=over_words_then_examples),
}  # fmt: skip
