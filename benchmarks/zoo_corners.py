"""Models and loops that are easily taken for simpler ones."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence

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
from benchmarks.zoo_formulas import ROWS, cells, euler, fold, of, splines, text, top_one, views
from benchmarks.zoo_layers import NanoGPT, mlp
from benchmarks.zoo_loops import OwnLoss

USED_AGAIN = {
    "one block six times": text(lambda m, x: euler(lambda h: m.block(h), x, 6), block=small(WIDTH, WIDTH)),
    "an ordinary differential equation": of(
        lambda m, x: m.head(euler(lambda h: (h @ m.w).tanh(), x)), w=(12, 12), head=head(12)
    ),
    "a fixed point": of(
        lambda m, x: m.head(euler(lambda h: (h @ m.w / 2 + x).tanh() - h, torch.zeros_like(x), 5)),
        w=(12, 12),
        head=head(12),
    ),
    "two views behind one another": of(views, body=small(12, WIDTH), head=head()),
    "weights and their transposes": of(lambda m, x: m.head((x @ m.w).tanh() @ m.w.T), w=(12, WIDTH), head=head(12)),
    "positions before examples inside": of(fold, 6, 12, first=linear(12, WIDTH), head=head()),
    "patches as examples inside": of(
        lambda m, x: m.head(m.first(x.flatten(0, 1)).tanh().view(len(x), -1)), 4, 12, first=linear(12, 4), head=head(16)
    ),
    "cells with a learnt start": of(cells, 6, 12, start=(WIDTH,), cell=lambda: nn.GRUCell(12, WIDTH), head=head()),
    "the best expert": of(top_one, gate=linear(12, 4), experts=(4, 12, 5)),
    "functions on edges": of(splines, grid=torch.linspace(-2, 2, ROWS), edges=(12, 5, ROWS)),
    "features of learnt frequencies": of(lambda m, x: m.head((x @ m.f).cos()), f=(12, ROWS), head=head(ROWS)),
    "a masked convolution": of(
        lambda m, x: m.head(functional.conv2d(x, m.w * m.mask).flatten(1)),
        3,
        6,
        6,
        w=(4, 3, 3, 3),
        mask=torch.ones(3, 3).tril(),
        head=head(64),
    ),
    "orthogonal weights": Entry(
        build=lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(12, 12)), nn.Tanh(), nn.Linear(12, CLASSES)),
        batch=features(12),
        loss=classify,
    ),
    "angles to the classes": of(
        lambda m, x: 5 * functional.normalize(m.first(x)) @ functional.normalize(m.classes).T,
        first=small(12, WIDTH),
        classes=(ROWS, WIDTH),
    ),
    "a learnt temperature": of(lambda m, x: m.body(x) * m.t.exp(), body=small(12, CLASSES), t=()),
    "gates that start at zero": of(
        lambda m, x: m.head(x + m.gate * m.body(x)), body=small(12, 12), gate=torch.zeros(12), head=head(12)
    ),
    "depthwise and dilated": Entry(
        build=lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, groups=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 4, 2, dilation=3),
            nn.PixelShuffle(2),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ),
        batch=features(3, 6, 6),
        loss=classify,
    ),
    "local response and RMS norms": of(
        lambda m, x: m.head(m.rms(m.local(x[:, :, None])[:, :, 0])),
        local=lambda: nn.LocalResponseNorm(3),
        rms=lambda: nn.RMSNorm(12),
        head=head(12),
    ),
}


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


def pruned() -> nn.Module:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.3)
    return model


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
    "parameters of its own": Entry(
        build=made(
            lambda m, x: m.inner(x * m.scale) + m.shift,
            inner=mlp,
            scale=lambda: nn.Parameter(torch.ones(12)),
            shift=lambda: nn.Parameter(torch.zeros(CLASSES)),
        ),
        **PLAIN,
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
    "pruned": Entry(build=pruned, **PLAIN),
    "activations in place": Entry(build=in_place, batch=features(3, 6, 6), loss=classify),
    "embedding, gradients by frequency": Entry(
        build=lambda: embedded(scale_grad_by_freq=True), batch=repeated, loss=classify
    ),
    "embedding, sparse gradients": Entry(build=lambda: embedded(sparse=True), **LANGUAGE, skips=("trainer",)),
    "embedding with padding": Entry(build=lambda: embedded(padding_idx=0), **LANGUAGE),
    "penalty on the weights": Entry(build=mlp, batch=features(12), loss=with_penalty),
    "penalty on the input's gradient": Entry(
        build=mlp, batch=features(12), loss=with_gradient_penalty, skips=("compiled", "trainer")
    ),
    "a forward pass more": Entry(build=mlp, batch=features(12), loss=with_a_look),
    "a target without gradients": Entry(build=lambda: NanoGPT(0), batch=words(), loss=with_target),
}
