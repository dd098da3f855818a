"""What the examples of a batch share makes a noise scale wrong and is told: constants of the batch, weights, targets,
copies."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter, separation
from cbs.noise_scale.batch_constants import BatchConstants
from cbs.noise_scale.cut import Call
from cbs.noise_scale.separation import Separation, alike
from tests.noise_scale.loops import (
    EXAMPLES,
    SIZE,
    TOKENS,
    Batch,
    batch,
    classifier,
    line,
    many_labels,
    points,
    run,
    tokens,
)
from tests.noise_scale.test_mixed_targets import labelled, mixed, of_mixed, rearranged, spelled_out, with_targets

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


def by_rarity(model: nn.Module, batch: Batch) -> Tensor:
    rare = (batch[1] > 0.8).float()
    factor = (1 - rare).sum() / rare.sum().clamp(min=1)
    return binary_cross_entropy_with_logits(model(batch[0]), rare, pos_weight=factor)


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


def smoothed(amount: Callable[[], float]) -> Callable[[nn.Module, Batch], Tensor]:
    return lambda model, batch: cross_entropy(model(batch[0]).mT, batch[1], label_smoothing=amount())


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
    "centred targets": (lambda m, b: mse_loss(m(b[0]), b[1] - b[1].mean()), NORMED + "mean 0"),
    "targets over their root mean square": (
        lambda m, b: mse_loss(m(b[0]), b[1] / b[1].square().mean().sqrt()),
        NORMED + "mean square 1",
    ),
    "targets minus their median": (lambda m, b: mse_loss(m(b[0]), b[1] - b[1].median()), NORMED + "median 0"),
    "positives weighted by the batch": (by_rarity, SCALED),
    "ranks as targets": (
        lambda m, b: mse_loss(m(b[0]), b[1].argsort(0).argsort(0) / 7),
        NORMED + "values in equal steps",
    ),
    "targets from 0 to 1": (
        lambda m, b: mse_loss(m(b[0]), (b[1] - b[1].min()) / (b[1].max() - b[1].min())),
        NORMED + "smallest value 0 and largest 1",
    ),
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
    "a smoothing of tokens drawn": (smoothed(lambda: float(torch.rand(()))), SCALED),
    "a smoothing of tokens": (smoothed(lambda: 0.1), ""),
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
    note = run(model, loss, draw, 10 if said.startswith((UNEVEN, NORMED)) else 100)
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
    "shares of what is not ignored": lambda m, b, whole: (
        cross_entropy(m(b[0]).mT, torch.where(b[2], b[1], -100)) * (int(b[2].sum()) / whole)
    ),
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


def test_labels_as_many_as_examples_are_no_weights_where_batches_differ_in_size() -> None:
    said: list[str] = []
    meter = NoiseScaleMeter(model := nn.Linear(5, 4), tell=said.append)
    for size in (16, 12):
        many_labels(model(batch(size)[:size])).backward()
        meter.step()
        model.zero_grad()
    assert not said


def test_targets_may_be_shared_within_groups() -> None:
    def within(members: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        return lambda step: (labelled(step), rearranged(labelled(step), step, members))

    assert with_targets(within(4), groups=4, every=1).estimate().steps == 21
    with pytest.raises(ConfigError, match="targets of a batch twice"):
        with_targets(within(EXAMPLES), groups=4)


@pytest.mark.parametrize(
    "targets",
    [
        lambda step: mixed(step, drawn=False),  # two annotators
        lambda step: mixed(step, 1.0, smoothing=0.1),  # labels of one class, smoothed
        lambda step: batch(step)[:, :4].softmax(1),  # of a teacher
    ],
)
def test_labels_of_several_classes_that_no_two_examples_share_are_measured(targets: Callable[[int], Tensor]) -> None:
    meter = of_mixed(targets, nn.functional.cross_entropy)
    assert meter.estimate().steps == 21
    assert meter.probe.caveat == ""


def test_labels_may_be_mixed_within_groups() -> None:
    assert of_mixed(lambda step: mixed(step, within=4), spelled_out, groups=4, every=1).estimate().steps == 21


def test_a_batch_that_is_mixed_up_with_itself_in_reverse_order_is_alike() -> None:
    rows = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    found, correlation = alike(0.7 * rows + 0.3 * rows.flip(0))
    assert found == -1
    assert correlation == pytest.approx(2 * 0.7 * 0.3 / (0.7**2 + 0.3**2), abs=0.1)


def test_a_large_batch_is_known_from_a_part_of_it() -> None:
    rows = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    assert alike(rows) == (0, 0.0)
    assert alike(rows.repeat(2, 1))[0] == 1000


def test_large_tensors_are_compared_by_a_part_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(32, 1000, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(separation, "NUMBERS", 32 * 50)
    assert alike(rows) == (0, 0.0)
    found, correlation = alike(rows.repeat(2, 1))
    assert (found, correlation) == (32, pytest.approx(1.0, abs=0.1))


def test_a_pass_is_let_go_before_the_one_after_the_next_is_made() -> None:
    """The logits of a language model are gigabytes: nine passes of them fill a device."""
    alive: list[weakref.ref[Tensor]] = []

    def run(kept: Tensor, others: Tensor) -> list[Call]:
        assert sum(held() is not None for held in alive) <= 2
        rows = torch.where(kept, torch.arange(16), others)[:, None].float()
        alive.append(weakref.ref(rows))
        return [Call("", [rows])]

    Separation().verify(run, [], torch.arange(16)[:, None])
    assert len(alive) == 9


class Bare(nn.Module):
    """A model without modules inside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(torch.randn(64, 64) / 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


def test_the_rounding_of_autocast_is_known_where_there_are_no_modules() -> None:
    meter = NoiseScaleMeter(model := Bare(), source="split")
    for step in range(3):
        x = torch.randn(12, 64, generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        assert meter.step() is not None
        model.zero_grad()
