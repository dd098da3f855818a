"""Losses and data that make a noise scale wrong unless it is told: constants of the batch, and what a batch shares."""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.shared_by_batch import SharedInputs, Sketch

SIZE, TOKENS, CLASSES = 12, 6, 5
Batch = tuple[Tensor, Tensor, Tensor]  # Inputs, targets and, where there are tokens, which of them count

UNEVEN = "divided by the sum of its own batch's weights"
OVER_STEP = "divided by the sum of weights over all of its micro-batches"
NORMED = "the loss holds a constant with "
SCALED = "a constant that differs from batch to batch"
SHARED = "examples of a batch share what other batches do not have"
ALIKE = "inputs of examples of a batch are alike"
DRAWN = "the model draws random numbers of shape"


class Skipping(nn.Module):
    """A residual block that is left out, or whose features are, for all examples of a batch or for single ones."""

    def __init__(self, draw: Callable[[], object]) -> None:
        super().__init__()
        self.inner, self.head, self.draw = nn.Linear(4, 4), nn.Linear(4, 1), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inner(x) * (torch.as_tensor(self.draw()) < 0.6))


def line() -> nn.Module:
    return nn.Linear(4, 1)


def classifier() -> nn.Module:
    return nn.Linear(4, CLASSES)


def points(draws: torch.Generator) -> Batch:
    x = torch.randn(SIZE, 4, generator=draws)
    return x, x[:, :1] + torch.randn(SIZE, 1, generator=draws), x


def tokens(draws: torch.Generator) -> Batch:
    x, labels = torch.randn(SIZE, TOKENS, 4, generator=draws), torch.randint(CLASSES, (SIZE, TOKENS), generator=draws)
    lengths = torch.where(torch.rand(SIZE, generator=draws) < 0.3, TOKENS, 1)
    return x, labels, torch.arange(TOKENS) < lengths[:, None]


def each(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]).mT, batch[1], reduction="none")


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


def places(batch: Batch) -> Tensor:
    return batch[2].flatten().nonzero()[:, 0]


def pieces(values: Tensor, batch: Batch) -> list[Tensor]:
    return [one[: int(mask.sum())] for one, mask in zip(values, batch[2], strict=True)]


def own(model: nn.Module, batch: Batch, reduction: str = "mean") -> list[Tensor]:
    pairs = zip(pieces(model(batch[0]), batch), pieces(batch[1], batch), strict=True)
    return [cross_entropy(output, labels, reduction=reduction) for output, labels in pairs]


def normed(y: Tensor) -> Tensor:
    return (y - y.mean()) / y.std()


def weighted(weights: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Batch], Tensor]:
    return lambda model, batch: ((model(batch[0]) - batch[1]).square() * weights(batch[1])).mean()


def scaled(factor: Callable[[Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Batch], Tensor]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = mse_loss(model(batch[0]), batch[1])
        return value * factor(value.detach(), batch[1])

    return loss


LOSSES: dict[str, tuple[Callable[[nn.Module, Batch], Tensor], str]] = {
    "logits[mask]": (lambda m, b: cross_entropy(m(b[0])[b[2]], b[1][b[2]]), UNEVEN),
    "index_select": (
        lambda m, b: cross_entropy(m(b[0]).flatten(0, 1).index_select(0, places(b)), b[1].flatten()[places(b)]),
        UNEVEN,
    ),
    "logits[rows, columns]": (lambda m, b: cross_entropy(m(b[0])[b[2].nonzero(as_tuple=True)], b[1][b[2]]), UNEVEN),
    "losses[mask]": (lambda m, b: each(m, b)[b[2]].mean(), UNEVEN),
    "losses[places]": (lambda m, b: each(m, b).flatten()[places(b)].sum() / len(places(b)), UNEVEN),
    "masked_select": (lambda m, b: each(m, b).masked_select(b[2]).mean(), UNEVEN),
    "tokens of pieces": (lambda m, b: cross_entropy(*(torch.cat(pieces(x, b)) for x in (m(b[0]), b[1]))), SCALED),
    "means over tokens": (lambda m, b: torch.stack(own(m, b)).mean(), ""),
    "sums, each over its tokens": (lambda m, b: sum(map(torch.div, own(m, b, "sum"), b[2].sum(1))) / SIZE, ""),
    "all tokens": (lambda m, b: each(m, b).mean(), ""),
    "tokens up to one length": (lambda m, b: each(m, b)[:, : int(b[1][0, 0]) + 1].mean(), ""),
    "one token each": (lambda m, b: cross_entropy(m(b[0])[torch.arange(SIZE), 0], b[1][:, 0]), ""),
    "standardised targets": (lambda m, b: mse_loss(m(b[0]), normed(b[1])), NORMED),
    "centred targets": (lambda m, b: mse_loss(m(b[0]), b[1] - b[1].mean()), NORMED),
    "targets over their root mean square": (lambda m, b: mse_loss(m(b[0]), b[1] / b[1].square().mean().sqrt()), NORMED),
    "targets minus their median": (lambda m, b: mse_loss(m(b[0]), b[1] - b[1].median()), NORMED),
    "targets from 0 to 1": (lambda m, b: mse_loss(m(b[0]), (b[1] - b[1].min()) / (b[1].max() - b[1].min())), NORMED),
    "targets with a 0": (lambda m, b: mse_loss(m(b[0]), b[1].index_fill(0, torch.tensor([3]), 0.0)), ""),
    "normed advantages": (weighted(normed), NORMED),
    "softmax over the batch": (weighted(lambda y: y.softmax(0)), UNEVEN),
    "weights over their mean": (weighted(lambda y: y.exp() / y.exp().mean()), UNEVEN),
    "weights of their own": (weighted(lambda y: y.exp()), ""),
    "over itself": (scaled(lambda value, y: 1 / value), SCALED),
    "over the variance": (scaled(lambda value, y: 1 / y.var()), SCALED),
    "over the norm": (scaled(lambda value, y: 1 / y.norm()), SCALED),
    "its square root": (scaled(lambda value, y: value.rsqrt()), SCALED),
    "a factor drawn": (scaled(lambda value, y: torch.rand(()) + 0.5), SCALED),
    "over a count": (scaled(lambda value, y: 1 / (y > 0).sum()), SCALED),
    "a factor that falls": (scaled(lambda value, y: next(FALLING)), ""),
}
FALLING = iter(torch.linspace(1, 0.1, 1000))


def run(
    model: nn.Module,
    loss: Callable[..., Tensor],
    draw: Callable[..., Batch],
    steps: int,
    micros: int = 1,
    **options: object,
) -> str:
    """Return what is said in some steps with parameters at rest."""
    draws, said = torch.Generator().manual_seed(4), list[str]()
    meter = NoiseScaleMeter(model, tell=said.append, **{"every": 1} | options)
    for _ in range(steps):
        model.zero_grad()
        parts: Sequence[Batch] = [*zip(*(tensor.chunk(micros) for tensor in draw(draws)), strict=True)]
        whole = sum(int(part[2].sum()) for part in parts)
        for part in parts:
            (loss(model, part) if micros == 1 else loss(model, part, whole)).backward()
        meter.step()
    return meter.estimate().note


@pytest.mark.parametrize("name", LOSSES)
def test_constants_of_the_batch_are_told(name: str) -> None:
    torch.manual_seed(0)
    loss, said = LOSSES[name]
    of_tokens = "token" in name or (said == UNEVEN and "weights" not in name and "softmax" not in name)
    model, draw = (classifier(), tokens) if of_tokens else (line(), points)
    note = run(model, loss, draw, 5 if said in (UNEVEN, NORMED) else 100)
    assert (said in note) if said else not any(one in note for one in (UNEVEN, NORMED, SCALED)), note


def test_numbers_of_examples_and_known_weights_explain_a_divisor() -> None:
    counted: list[Tensor] = []
    known = {"weights": lambda *_: counted[-1]}
    for loss, options, told in (
        (lambda losses, mask: losses.mean(1).sum() / len(mask), {}, False),
        (lambda losses, mask: (losses * mask).sum() / mask.sum(), known, False),
        (lambda losses, mask: losses.mean() / mask.sum(), {}, True),
    ):
        torch.manual_seed(0)
        draws, model = torch.Generator().manual_seed(4), classifier()
        meter = NoiseScaleMeter(model, every=1, tell=lambda _: None, **options)
        for step in range(100):
            x, labels, mask = (tensor[: SIZE - 4 * (step % 3 == 1)] for tensor in tokens(draws))
            counted.append(mask.sum(1))
            model.zero_grad()
            loss(cross_entropy(model(x).mT, labels, reduction="none"), mask).backward()
            meter.step()
        assert (SCALED in meter.estimate().note) == told


OVER_STEPS: dict[str, Callable[[nn.Module, Batch, int], Tensor]] = {
    "ignored": lambda m, b, whole: (
        cross_entropy(m(b[0]).mT, torch.where(b[2], b[1], -100), ignore_index=-100, reduction="sum") / whole
    ),
    "masked": lambda m, b, whole: (each(m, b) * b[2]).sum() / whole,
    "selected": lambda m, b, whole: each(m, b)[b[2]].sum() / whole,
    "shares": lambda m, b, whole: cross_entropy(m(b[0])[b[2]], b[1][b[2]]) * (b[2].sum() / whole),
    "selected logits": lambda m, b, whole: cross_entropy(m(b[0])[b[2]], b[1][b[2]], reduction="sum") / whole,
}


@pytest.mark.parametrize("name", OVER_STEPS)
def test_sums_over_the_step_are_told_or_corrected_by_weights(name: str) -> None:
    torch.manual_seed(0)
    options = {"source": "accumulation", "micros": 4}
    assert OVER_STEP in run(classifier(), OVER_STEPS[name], tokens, 3, **options)
    assert OVER_STEP not in run(classifier(), lambda m, b, _: each(m, b).sum() / SIZE / TOKENS, tokens, 3, **options)
    lengths = torch.ones(SIZE // 4)
    assert OVER_STEP not in run(classifier(), OVER_STEPS[name], tokens, 3, weights=lambda *_: lengths, **options)


def shared(kind: str) -> Callable[[torch.Generator], Batch]:
    def draw(draws: torch.Generator) -> Batch:
        x, one = torch.randn(SIZE, 4, generator=draws), torch.randn((), generator=draws)
        noise = torch.randn(SIZE, 1, generator=draws)
        sign = one.sign()
        if kind == "one task":
            y = x[:, :1] + sign * x[:, 1:2]
        elif kind == "one of two datasets":
            x, y = x + sign, x[:, :1] * (1 + sign)
        elif kind == "one length":
            x = x * (torch.arange(4) < 1 + int(one.abs() * 2))
            y = x.sum(1, keepdim=True)
        elif kind == "one crop":
            x = x.roll(int(one * 10), 1)
            y = x[:, :1] + one
        elif kind == "one level of noise":
            x, y = x * 2 * (3 * one).sigmoid(), x[:, :1]
        elif kind == "one offset":
            y = x[:, :1] + 5 * sign
        else:
            y = x[:, :1]
        return x, y + noise, x

    return draw


@pytest.mark.parametrize(
    "kind", ["one task", "one of two datasets", "one length", "one crop", "one level of noise", "one offset", "nothing"]
)
def test_what_a_batch_shares_is_told(kind: str) -> None:
    torch.manual_seed(0)
    note = run(line(), squared, shared(kind), 320)
    assert (SHARED in note) == (kind != "nothing"), note


def test_few_steps_are_compared_where_few_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    of, taken = Sketch.of, list[Sketch]()
    monkeypatch.setattr(Sketch, "of", lambda self, tensors: taken.append(self) or of(self, tensors))
    assert SHARED in run(line(), squared, shared("one offset"), 600, every=None)
    assert len(taken) < 350


def test_examples_in_the_second_dimension_are_told() -> None:
    """Time comes first: what is split are the times, which share the examples."""
    torch.manual_seed(0)

    def series(draws: torch.Generator) -> Batch:
        own = torch.randn(3, 4, generator=draws)
        x = own + 0.1 * torch.randn(SIZE, 3, 4, generator=draws)
        return x, x[..., :1] + torch.randn(3, 1, generator=draws), x

    assert SHARED in run(line(), squared, series, 320)


def test_random_weights_for_a_whole_batch_are_told() -> None:
    torch.manual_seed(0)
    model = nn.utils.parametrize.register_parametrization(nn.Linear(4, 5), "weight", nn.Dropout(0.5))
    assert DRAWN in run(model, lambda m, b: m(b[0]).square().mean(), points, 3)


FOR_ALL = [random.random, np.random.rand, partial(torch.rand, []), partial(torch.rand, [1])]
FOR_EACH = [partial(np.random.rand, SIZE, 1), partial(torch.rand, [SIZE, 1]), partial(torch.rand, [SIZE, 4])]


@pytest.mark.parametrize("draw", [*FOR_ALL, *FOR_EACH])
def test_random_numbers_for_a_whole_batch_are_told(draw: Callable[[], object]) -> None:
    torch.manual_seed(0)
    assert (DRAWN in run(Skipping(draw), squared, points, 3)) == (draw in FOR_ALL)


def test_what_is_shared_is_told_while_parameters_move() -> None:
    """AdamW takes a tenth of a step from the latest gradient."""
    for kind, told in ("one offset", True), ("nothing", False):
        torch.manual_seed(0)
        model = line()
        optimizer, draws = torch.optim.AdamW(model.parameters(), lr=0.001), torch.Generator().manual_seed(3)
        meter = NoiseScaleMeter(model, every=1, tell=lambda _: None)
        for _ in range(320):
            x, y, _ = shared(kind)(draws)
            optimizer.zero_grad()
            mse_loss(model(x), y * 3).backward()
            meter.step()
            optimizer.step()
        assert (SHARED in meter.estimate().note) == told


def sentences(draws: torch.Generator, length: int, least: int = 1) -> Tensor:
    return torch.randint(least, 30, (SIZE, length), generator=draws)


def padded(draws: torch.Generator) -> Tensor:
    lengths = torch.randint(1, 9, (SIZE, 1), generator=draws)
    return torch.where(torch.arange(8) < lengths, sentences(draws, 8), 0)[:, : int(lengths.max())]


def masked(draws: torch.Generator, ratios: int) -> Tensor:
    x, chances = torch.randn(SIZE, 6, generator=draws), torch.rand(SIZE, 6, generator=draws)
    return x * (chances < torch.rand(ratios, 1, generator=draws))


INPUTS: dict[str, tuple[Callable[[torch.Generator, int], Tensor], bool]] = {
    "one masking ratio": (lambda draws, _: masked(draws, 1), True),
    "one number of masked words": (
        lambda draws, _: sentences(draws, 8, least=5).index_fill_(
            1, torch.arange(int(torch.randint(1, 8, (), generator=draws))), 1
        ),
        True,
    ),
    "one diffusion time": (lambda draws, _: torch.rand(1, generator=draws).expand(SIZE, 1), True),
    "one length": (lambda draws, _: sentences(draws, int(torch.randint(3, 9, (), generator=draws))), True),
    "padded to the longest": (lambda draws, _: padded(draws), False),
    "padded at the start": (lambda draws, _: padded(draws).flip(1), False),
    "a masking ratio for each": (lambda draws, _: masked(draws, SIZE), False),
    "data that drift": (lambda draws, step: torch.randn(SIZE, 6, generator=draws) + step / 10, False),
    "heavy tails": (lambda draws, _: torch.randn(SIZE, 6, generator=draws) ** 5, False),
    "the same everywhere": (lambda draws, _: torch.arange(6).expand(SIZE, 6), False),
    "a counter": (lambda draws, step: torch.full((SIZE, 1), float(step)), False),
    "a schedule": (lambda draws, step: torch.full((SIZE, 1), math.cos(step / 50)), False),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_a_batch_shares_are_told(name: str) -> None:
    draw, told = INPUTS[name]
    draws, batches = torch.Generator().manual_seed(7), SharedInputs()
    for step in range(100):
        batches.add([draw(draws, step)], torch.arange(SIZE)[:, None])
    assert (ALIKE in batches.told()) == told, batches.told()


def test_groups_that_belong_together_are_compared_as_one() -> None:
    """Each prompt has four answers, and prompts are drawn independently."""
    draws, batches, single = torch.Generator().manual_seed(7), SharedInputs(), SharedInputs()
    for _ in range(400):
        x = torch.randn(2, 6, generator=draws).repeat_interleave(4, 0)
        batches.add([x], torch.arange(8).view(2, 4))
        single.add([x], torch.arange(8)[:, None])
    assert not batches.told()
    assert ALIKE in single.told()


@pytest.mark.parametrize("passes", [1, 2])
def test_two_passes_over_the_same_examples_may_have_one_length_each(passes: int) -> None:
    """As crops of two sizes have."""
    torch.manual_seed(0)
    model, count = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1)), lambda args, kwargs: len(args[0])
    meter = NoiseScaleMeter(model, every=1, tell=lambda _: None, **{"count": count} if passes == 2 else {})
    for step in range(100):
        x = torch.randn(SIZE, 1, 9)
        model.zero_grad()
        crops = [x, x[..., :5]] if passes == 2 else [x[..., : (9, 5)[step % 2]]]
        torch.stack([model(crop).square().mean() for crop in crops]).sum().backward()
        meter.step()
    assert (ALIKE in meter.estimate().note) == (passes == 1)


@pytest.mark.parametrize("ratio_of", ["a batch", "an example"])
def test_a_masking_ratio_is_told_early_while_parameters_move(ratio_of: str) -> None:
    """Its part of the signal, about a fifth, is too small for the products."""
    torch.manual_seed(0)
    model, draws = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.Generator().manual_seed(3)
    optimizer, said = torch.optim.AdamW(model.parameters(), lr=0.003), list[str]()
    meter = NoiseScaleMeter(model, every=1, tell=said.append)
    for _ in range(50):
        x = torch.randn(SIZE, 6, generator=draws)
        chances = torch.rand(SIZE, 6, generator=draws)
        ratios = torch.rand(1 if ratio_of == "a batch" else (SIZE, 1), generator=draws)
        optimizer.zero_grad()
        mse_loss(model(x * (chances < ratios)), 1.5 * x[:, :1] + torch.randn(SIZE, 1, generator=draws)).backward()
        meter.step()
        optimizer.step()
    assert (ALIKE in meter.estimate().note) == (ratio_of == "a batch")
    assert len(said) == (ratio_of == "a batch")
