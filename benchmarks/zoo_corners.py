"""Models and loops that are easily taken for simpler ones, and modules that people write themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo_entry import (
    CLASSES,
    LANGUAGE,
    PLAIN,
    TOKENS,
    WIDTH,
    WORDS,
    Batch,
    Entry,
    classify,
    classify_terms,
    embedding,
    features,
    head,
    linear,
    made,
    small,
    words,
)
from benchmarks.zoo_layers import LowRank, NanoGPT, mlp
from benchmarks.zoo_loops import OwnLoss


def centred(m: Any, x: Tensor) -> Tensor:
    """Normalises its inner features over the batch, without a module that would say so."""
    inner = m.first(x).tanh()
    return m.second(inner - inner.mean(0))


def skipping(m: Any, x: Tensor) -> Tensor:
    """Leaves out layers at random, for the whole batch."""
    for layer in m.layers:
        if torch.rand(()) < 0.6:
            x = x + layer(x).tanh()
    return m.head(x)


def packed(m: Any, x: Tensor) -> Tensor:
    """Sequences of several lengths, packed, which puts time first; the last state is classified."""
    lengths = (x != 0).sum(1)
    _, (state, _) = m.lstm(pack_padded_sequence(m.words(x), lengths, batch_first=True, enforce_sorted=False))
    return m.head(state[0])


class Adaptive(nn.Module):
    """A softmax in clusters: rows are picked by their target."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, WORDS, cutoffs=[5, 11])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.softmax(self.words(x).tanh().flatten(0, 1), y.flatten()).loss


class TableFirst(nn.Module):
    """Its first argument is the same for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, table: Tensor, x: Tensor) -> Tensor:
        return self.head(self.words(x).tanh() + table)


def in_place() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(inplace=True),
        nn.Flatten(), nn.Linear(32, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


def embedded(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH, **options), nn.Tanh(), nn.Linear(WIDTH, WORDS))


def shortened(examples: int, generator: torch.Generator) -> Batch:
    batch = words()(examples, generator)
    lengths = torch.randint(2, TOKENS + 1, (examples, 1), generator=generator)
    x = (1 + batch["x"] % (WORDS - 1)).masked_fill(torch.arange(TOKENS) >= lengths, 0)
    return {"x": x, "y": batch["y"][:, 0] % CLASSES}


def repeated(examples: int, generator: torch.Generator) -> Batch:
    """Few words, so that several examples have the same."""
    return words(TOKENS, 5)(examples, generator)


def with_penalty(model: nn.Module, batch: Batch) -> Tensor:
    """The squared weights are in the loss, not in the optimizer."""
    return classify(model, batch) + 0.01 * sum(parameter.square().sum() for parameter in model.parameters())


def with_gradient_penalty(model: nn.Module, batch: Batch) -> Tensor:
    """The gradient with respect to the input is in the loss."""
    x = batch["x"].clone().requires_grad_()
    logits = model(x)
    (slope,) = torch.autograd.grad(logits.logsumexp(-1).sum(), x, create_graph=True)
    return functional.cross_entropy(logits, batch["y"]) + 0.1 * slope.square().sum(-1).mean()


def with_a_look(model: nn.Module, batch: Batch) -> Tensor:
    """Another forward pass, of a single example, that nobody differentiates."""
    loss = classify(model, batch)
    model(batch["x"][:1])
    return loss


def with_target(model: nn.Module, batch: Batch) -> Tensor:
    """Self-distillation: what is aimed at comes from a forward pass without gradients."""
    with torch.no_grad():
        target = model(batch["x"].flip(-1)).float().softmax(-1)
    return functional.cross_entropy(model(batch["x"]).flatten(0, -2), target.flatten(0, -2))


def with_table(model: nn.Module, batch: Batch) -> Tensor:
    table = torch.linspace(-1, 1, TOKENS)[:, None].to(next(model.parameters()).dtype)
    return functional.cross_entropy(model(table, batch["x"]).flatten(0, 1), batch["y"].flatten())


CENTRED = made(centred, first=linear(12, WIDTH), second=head())
CORNERS = {
    "centred over the batch": Entry(build=CENTRED, **PLAIN),
    "centred over the batch, returns its loss": Entry(build=lambda: OwnLoss(CENTRED()), batch=features(12)),
    "weight used outside its layer": Entry(
        build=made(
            lambda m, x: functional.linear(m.mix(m.words(x)).tanh(), m.words.weight),
            words=embedding,
            mix=linear(WIDTH, WIDTH),
        ),
        **LANGUAGE,
    ),
    "layers left out at random": Entry(
        build=made(skipping, layers=lambda: nn.ModuleList(nn.Linear(12, 12) for _ in range(4)), head=head(12)),
        **PLAIN,
        terms=classify_terms,
    ),
    "packed sequences": Entry(
        build=made(packed, words=embedding, lstm=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), head=head()),
        batch=shortened,
        loss=classify,
    ),
    "adaptive softmax, returns its loss": Entry(build=Adaptive, batch=words()),
    "first argument without examples": Entry(build=TableFirst, batch=words(), loss=with_table),
    "activations in place": Entry(build=in_place, batch=features(3, 6, 6), loss=classify),
    "embedding, gradients by frequency": Entry(
        build=lambda: embedded(scale_grad_by_freq=True), batch=repeated, loss=classify
    ),
    "embedding, sparse gradients": Entry(build=lambda: embedded(sparse=True), **LANGUAGE, skips=("trainer",)),
    "penalty on the weights": Entry(build=mlp, batch=features(12), loss=with_penalty),
    "penalty on the input's gradient": Entry(
        build=mlp, batch=features(12), loss=with_gradient_penalty, skips=("compiled", "trainer")
    ),
    "a forward pass more": Entry(build=mlp, batch=features(12), loss=with_a_look),
    "a target without gradients": Entry(build=lambda: NanoGPT(0), batch=words(), loss=with_target),
}


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def symmetric() -> nn.Module:
    layer = nn.Linear(12, 12)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(12, CLASSES))


class Tied(nn.Module):
    """The output is the embedding, scaled, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WORDS))

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.tokens(x) * WIDTH**0.5).tanh()
        return h @ self.tokens.weight.T / WIDTH**0.5 * self.scale


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


def capacity(m: Any, x: Tensor) -> Tensor:
    """Every expert takes the rows that score highest in the batch, and no others."""
    scores = m.gate(x).softmax(-1)
    values, rows = scores.T.topk(max(1, len(x) // 2))
    found = torch.einsum("kri,kio->kro", x[rows], m.experts) * values[..., None]
    return x.new_zeros(len(x), CLASSES).index_add(0, rows.flatten(), found.flatten(0, 1))


def in_one_row(m: Any, x: Tensor) -> Tensor:
    """Sequences one after the other in a single row, told apart by a mask."""
    flat = m.tokens(x.reshape(1, -1))
    owner = torch.arange(x.numel()) // x.shape[1]
    mask = owner[:, None] == owner
    mixed = functional.scaled_dot_product_attention(flat, m.mix(flat), flat, attn_mask=mask)
    return m.head(flat + mixed).view(*x.shape, -1)


def several_lengths(examples: int, generator: torch.Generator) -> Batch:
    batch = words()(examples, generator)
    lengths = torch.randint(1, TOKENS + 1, (examples, 1), generator=generator)
    return {**batch, "mask": (torch.arange(TOKENS) < lengths).float()}


def mean_over_words(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over the words that count, of all examples."""
    values = functional.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"], reduction="none")
    return (values * batch["mask"]).sum() / batch["mask"].sum()


def mean_of_means(model: nn.Module, batch: Batch) -> Tensor:
    values = functional.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"], reduction="none")
    return ((values * batch["mask"]).sum(1) / batch["mask"].sum(1)).mean()


def word_shares(batch: Batch) -> Tensor:
    counted = batch["mask"].sum(1)
    return counted / counted.sum()


def nano() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS))


TWO: dict[str, Any] = {"first": linear(12, WIDTH), "head": head()}  # Two layers

OWN = {
    "low rank, bare factors": Entry(build=lambda: nn.Sequential(LowRank(12, 16), nn.Tanh(), LowRank(16, 5)), **PLAIN),
    "parametrization, symmetric": Entry(build=symmetric, **PLAIN),
    "functional_call, scaled": Entry(
        build=made(called, inner=small(12, CLASSES), gain=lambda: nn.Parameter(torch.ones(()))), **PLAIN
    ),
    "tied by hand, scaled": Entry(build=Tied, **LANGUAGE),
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
    "experts that choose rows": Entry(build=made(capacity, gate=linear(12, 2), experts=(2, 12, CLASSES)), **PLAIN),
    "sequences in one row": Entry(
        build=made(in_one_row, tokens=embedding, mix=linear(WIDTH, WIDTH), head=linear(WIDTH, WORDS)), **LANGUAGE
    ),
    "masked, mean over words": Entry(build=nano, batch=several_lengths, loss=mean_over_words, shares=word_shares),
    "masked, mean of means": Entry(build=nano, batch=several_lengths, loss=mean_of_means),
}
