"""Constants of a loss that were computed from its batch are told, as they make a noise scale wrong."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import cross_entropy, mse_loss

from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.batch_constants import BatchConstants
from tests.noise_scale.loops import SIZE, TOKENS, Batch, classifier, line, points, run, tokens

UNEVEN = "divided by the sum of its own batch's weights"
OVER_STEP = "divided by the sum of weights over all of its micro-batches"
NORMED = "the loss holds a constant with "
SCALED = "a constant that differs from batch to batch"
COUNTED = "divided by how many of its batch are of its kind"


def each(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]).mT, batch[1], reduction="none")


def places(batch: Batch) -> Tensor:
    return batch[2].flatten().nonzero()[:, 0]


def pieces(values: Tensor, batch: Batch) -> list[Tensor]:
    return [one[: int(mask.sum())] for one, mask in zip(values, batch[2], strict=True)]


def own(model: nn.Module, batch: Batch, reduction: str = "mean") -> list[Tensor]:
    pairs = zip(pieces(model(batch[0]), batch), pieces(batch[1], batch), strict=True)
    return [cross_entropy(output, labels, reduction=reduction) for output, labels in pairs]


def normed(y: Tensor) -> Tensor:
    return (y - y.mean()) / y.std()


def counts(y: Tensor) -> Tensor:
    """Return how many targets have the sign of each."""
    return torch.where(y > 0, (y > 0).sum(), (y <= 0).sum())


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
    "over the counts of two kinds": (lambda m, b: ((m(b[0]) - b[1]).square() / counts(b[1])).mean(), COUNTED),
    "times one over the counts": (weighted(lambda y: 1 / counts(y)), COUNTED),
    "over numbers of their own": (weighted(lambda y: 1 / (1 + (3 * y.abs()).floor())), ""),
    "over the number of examples": (weighted(lambda y: 1 / torch.full_like(y, len(y))), ""),
    "a factor that falls": (scaled(lambda value, y: next(FALLING)), ""),
}
FALLING = iter(torch.linspace(1, 0.1, 1000))


@pytest.mark.parametrize("name", LOSSES)
def test_constants_of_the_batch_are_told(name: str) -> None:
    torch.manual_seed(0)
    loss, said = LOSSES[name]
    of_tokens = "token" in name or (said == UNEVEN and "weights" not in name and "softmax" not in name)
    model, draw = (classifier(), tokens) if of_tokens else (line(), points)
    note = run(model, loss, draw, 5 if said in (UNEVEN, NORMED) else 100)
    assert (said in note) if said else not any(one in note for one in (UNEVEN, NORMED, SCALED, COUNTED)), note


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


@pytest.mark.parametrize("ever", [True, False])
def test_numbers_that_are_counts_in_every_other_batch_are_none(ever: bool) -> None:
    constants = BatchConstants()
    for step in range(10):
        output = torch.ones(4, requires_grad=True)
        of_output = output * 2
        numbers = torch.tensor([1, 2, 2, 1] if ever or step % 2 else [1, 2, 1, 1])
        constants.add([(of_output / numbers).sum()], [get_gradient_edge(of_output)], 4)
    assert (COUNTED in constants.found) == ever
