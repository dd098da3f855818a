"""Models of torch's own layers, trained in the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from benchmarks.zoo_entry import (
    CLASSES,
    IMAGES,
    LANGUAGE,
    PLAIN,
    TOKENS,
    WIDTH,
    WORDS,
    Entry,
    classify,
    classify_terms,
    embedding,
    features,
    head,
    linear,
    made,
    words,
)


class Residual(nn.Module):
    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = norm(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first_norm(self.first(x)).relu()
        return (x + self.second_norm(self.second(inner))).relu()


class ResNet(nn.Module):
    """Two residual blocks; ``frozen`` keeps the statistics of batch normalisation as they are."""

    def __init__(self, norm: Callable[[int], nn.Module], *, frozen: bool = False) -> None:
        super().__init__()
        self.frozen = frozen
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = norm(8)
        self.blocks = nn.Sequential(Residual(8, norm), nn.MaxPool2d(2), Residual(8, norm))
        self.head = nn.Linear(8, CLASSES)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.norm(self.stem(x)).relu()).mean((2, 3)))

    def train(self, mode: bool = True) -> ResNet:
        super().train(mode)
        if self.frozen:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


class Recurrent(nn.Module):
    """Words through a recurrent layer; ``time_first`` inside alone."""

    def __init__(self, layer: Callable[..., nn.RNNBase], *, time_first: bool = False, **options: Any) -> None:
        super().__init__()
        self.time_first = time_first
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.recurrent = layer(WIDTH, WIDTH, batch_first=not time_first, **options)
        self.head = nn.Linear(WIDTH * (1 + bool(options.get("bidirectional"))), WORDS)

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.embedding(x)
        if self.time_first:
            inputs = inputs.transpose(0, 1)
        hidden = self.recurrent(inputs)[0]
        return self.head(hidden.transpose(0, 1) if self.time_first else hidden)


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        examples, length, width = x.shape
        parts = self.attention(self.norm(x)).view(examples, length, 3, 2, width // 2).transpose(1, 3)
        query, key, value = parts.unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).reshape(examples, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.second_norm(x)))))


class NanoGPT(nn.Module):
    """Positions are looked up once for all examples, not at all for length 0; the output may share the embedding."""

    def __init__(self, length: int, *, dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(length, WIDTH) if length else None
        self.blocks = nn.Sequential(Block(dropout), Block(dropout))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.words(x)
        if self.positions is not None:
            inputs = inputs + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(inputs)))


class LowRank(nn.Module):
    """A frozen linear layer and two bare factors beside it, as of an adapter whose second factor has left zero."""

    def __init__(self, rows: int, columns: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(rows, columns).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, rows) / 4)
        self.b = nn.Parameter(torch.randn(columns, rank) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + (x @ self.a.T) @ self.b.T * 2.0


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, CLASSES))


def frozen_mlp() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def seq2seq(m: Any, x: Tensor) -> Tensor:
    inputs = m.words(x)
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return m.head(m.layer(inputs, inputs.flip(1), tgt_mask=mask, tgt_is_causal=True))


def attention(m: Any, x: Tensor) -> Tensor:
    inputs = m.words(x)
    return m.head(inputs + m.layer(inputs, inputs, inputs, need_weights=False)[0])


def over_words(formula: Callable[[Any, Tensor], Tensor], layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A layer between the embedding and the head."""
    return made(formula, words=embedding, layer=layer, head=linear(WIDTH, WORDS))


def encoder(dropout: float) -> Callable[[], nn.Module]:
    return over_words(
        lambda m, x: m.head(m.layer(m.words(x))),
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout, batch_first=True),
    )


def pooled(convolution: Callable[[], nn.Module], channels: int) -> Callable[[], nn.Module]:
    return made(
        lambda m, x: m.head(m.convolution(x).relu().flatten(2).square().mean(2)),
        convolution=convolution,
        head=head(channels),
    )


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(norm(nn.Linear(12, 16)), nn.Tanh(), norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, CLASSES))


RANDOM: dict[str, Any] = {"terms": classify_terms}
CHAIN = ("blocks.0", "blocks.1")
NANO: dict[str, Any] = {"blocks": CHAIN, "also": ("reentrant",)}
LAYERS = {
    "MLP": Entry(build=mlp, **PLAIN, blocks=("0", "2"), also=("inductor",)),
    "MLP, some parameters frozen": Entry(build=frozen_mlp, **PLAIN, blocks=("2",)),
    "MLP with dropout": Entry(
        build=lambda: nn.Sequential(mlp(), nn.Dropout(0.3), nn.Linear(CLASSES, CLASSES)), **PLAIN, **RANDOM
    ),
    "adapter of low rank": Entry(
        build=lambda: nn.Sequential(LowRank(12, 12), nn.Tanh(), LowRank(12, 12), nn.Linear(12, CLASSES)), **PLAIN
    ),
    "spectral norm": Entry(build=lambda: normed(parametrizations.spectral_norm), **PLAIN),
    "weight norm": Entry(build=lambda: normed(parametrizations.weight_norm), **PLAIN),
    "weight norm, old hooks": Entry(build=lambda: normed(nn.utils.weight_norm), **PLAIN),
    "ResNet, GroupNorm": Entry(
        build=lambda: ResNet(lambda c: nn.GroupNorm(2, c)), **IMAGES, blocks=("blocks.0", "blocks.2")
    ),
    "ResNet, BatchNorm": Entry(build=lambda: ResNet(nn.BatchNorm2d), **IMAGES),
    "ResNet, BatchNorm in eval": Entry(build=lambda: ResNet(nn.BatchNorm2d, frozen=True), **IMAGES),
    "ResNet, InstanceNorm": Entry(build=lambda: ResNet(lambda c: nn.InstanceNorm2d(c, affine=True)), **IMAGES),
    "transposed convolution": Entry(build=pooled(lambda: nn.ConvTranspose2d(3, 8, 3), 8), **IMAGES),
    "EmbeddingBag": Entry(
        build=lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)),
        batch=lambda n, g: {"x": words()(n, g)["x"], "y": words(1, CLASSES)(n, g)["x"][:, 0]},
        loss=classify,
    ),
    "LSTM": Entry(build=lambda: Recurrent(nn.LSTM), **LANGUAGE),
    "LSTM, 2 layers, both directions": Entry(
        build=lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), **LANGUAGE
    ),
    "LSTM, 2 layers with dropout": Entry(
        build=lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3), **LANGUAGE, **RANDOM
    ),
    "GRU, time first inside": Entry(build=lambda: Recurrent(nn.GRU, time_first=True), **LANGUAGE),
    "MultiheadAttention with dropout": Entry(
        build=over_words(attention, lambda: nn.MultiheadAttention(WIDTH, 2, 0.3, batch_first=True)),
        **LANGUAGE,
        **RANDOM,
    ),
    "TransformerEncoderLayer": Entry(build=encoder(0.0), **LANGUAGE, blocks=("layer",)),
    "TransformerEncoderLayer with dropout": Entry(build=encoder(0.3), **LANGUAGE, **RANDOM, blocks=("layer",)),
    "nn.Transformer with dropout": Entry(
        build=over_words(seq2seq, lambda: nn.Transformer(WIDTH, 2, 1, 1, 2 * WIDTH, 0.3, batch_first=True)),
        **LANGUAGE,
        **RANDOM,
    ),
    "nanoGPT": Entry(build=lambda: NanoGPT(TOKENS), **LANGUAGE, **NANO),
    "nanoGPT with dropout": Entry(build=lambda: NanoGPT(TOKENS, dropout=0.3), **LANGUAGE, **RANDOM, **NANO),
    "nanoGPT, twice as many words as examples": Entry(
        build=lambda: NanoGPT(8), batch=words(8), loss=classify, blocks=CHAIN
    ),
    "nanoGPT, as many words as examples": Entry(build=lambda: NanoGPT(4), batch=words(4), loss=classify, blocks=CHAIN),
}


def late(change: Callable[[Any], object], *, frozen: str = "") -> Entry:
    """An MLP that is changed before its second step; ``frozen`` is not trained before."""

    def build() -> nn.Module:
        model = mlp()
        if frozen:
            model.get_submodule(frozen).requires_grad_(False)
        return model

    def second(model: nn.Module, step: int) -> None:
        if step == 1:
            change(model)

    return Entry(build=build, batch=features(12), loss=classify, change=second, compiled=False, skips=("trainer",))


def extra(model: Any, rows: int, columns: int) -> nn.Module:
    """A layer more for a model, in its dtype."""
    return nn.Linear(rows, columns, dtype=model[0].weight.dtype)


def swap(model: Any) -> None:
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)


LATE = {
    "unfrozen": late(lambda model: model[0].requires_grad_(True), frozen="0"),
    "frozen": late(lambda model: model[0].requires_grad_(False)),
    "one unfrozen, one frozen": late(swap, frozen="0"),
    "a bias unfrozen": late(lambda model: model[0].bias.requires_grad_(True), frozen="0"),
    "a new head": late(lambda model: model.__setitem__(4, extra(model, 24, CLASSES))),
    "a layer more": late(lambda model: model.append(extra(model, CLASSES, CLASSES))),
    "another weight": late(lambda model: setattr(model[2], "weight", nn.Parameter(model[2].weight.detach() / 2))),
}
