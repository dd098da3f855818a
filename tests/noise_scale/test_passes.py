"""Counting the examples of a forward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.sources import SOURCES, Source
from tests.noise_scale.loops import EXAMPLES, ROWS, batch, many_labels


class Anything(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> None:
        pass


@pytest.mark.parametrize(
    ("args", "kwargs", "examples"),
    [
        ((torch.ones(3, 2),), {}, 3),
        ((None, "text", torch.ones(4)), {}, 4),
        (((torch.ones(5, 1), torch.ones(6)),), {}, 5),
        ((), {"input_ids": torch.ones(7, 2), "labels": torch.ones(8)}, 7),
        (({"x": torch.ones(9)},), {}, 9),
        ((torch.tensor(1.0), torch.ones(2)), {}, 2),
    ],
)
def test_the_first_tensor_counts(args: tuple[object, ...], kwargs: dict[str, object], examples: int) -> None:
    assert first_dimension(args, kwargs) == examples


def attached(model: nn.Module, count: CountExamples = first_dimension) -> Source:
    source = SOURCES.make("accumulation", model, [], [], count=count)
    source.attach()
    return source


def test_without_a_tensor_someone_has_to_say() -> None:
    model = Anything()
    attached(model)
    with pytest.raises(ConfigError, match="count="):
        model(3, flag=True)


def test_only_passes_that_can_be_differentiated_count() -> None:
    model = Anything()
    passes = attached(model, lambda args, kwargs: args[0])
    model(3)
    with torch.no_grad():
        model(4)
    with torch.inference_mode():
        model(5)
    assert (passes.latest.number, passes.latest.units.numel()) == (1, 3)
    model(6)
    assert (passes.latest.number, passes.latest.units.numel()) == (2, 6)
    passes.detach()
    model(7)
    assert passes.latest.number == 2


def test_weights_correct_a_quotient() -> None:
    """The loss of a step is a sum over tokens divided by their number; the truth is that of whole batches."""
    torch.manual_seed(0)
    model, draws, counted, rows = nn.Linear(4, 5), torch.Generator().manual_seed(5), list[Tensor](), list[Tensor]()
    meters = [
        NoiseScaleMeter(model, source=source, every=1, window=None, weights=lambda *_: counted[-1], tell=lambda _: None)
        for source in ("split", "per_example")
    ]

    def draw() -> tuple[Tensor, Tensor, Tensor]:
        x, labels = torch.randn(48, 6, 4, generator=draws), torch.randint(5, (48, 6), generator=draws)
        labels = torch.where(x[..., 0] > 0.5, 0, labels)
        return x, labels, torch.arange(6) < torch.randint(1, 7, (48, 1), generator=draws)

    for _ in range(120):
        x, labels, mask = draw()
        counted.append(mask.sum(1))
        model.zero_grad()
        cross_entropy(model(x)[mask], labels[mask]).backward()
        for meter in meters:
            meter.step()
        rows.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    gradients = torch.stack(rows).double()
    noise = float((gradients - gradients.mean(0)).square().sum()) / (len(rows) - 1)
    truth = 48 * noise / (float(gradients.mean(0).square().sum()) - noise / len(rows))
    for meter in meters:
        assert meter.estimate().value == pytest.approx(truth, rel=0.15)


def terms(output: Tensor) -> Tensor:
    return output.square()


SEEN = (torch.arange(EXAMPLES * 4).view(-1, 4) % 7 < 5) & (torch.arange(4) <= ROWS)
"""Which tokens of padded sequences count: 41 of 64."""
LABELS = torch.arange(EXAMPLES) % 5 % 4
CLASSES = torch.tensor([0.4, 1.0, 2.0, 7.3])


def seen(step: int) -> Tensor:
    """Fewer of them in every step."""
    return SEEN & (step <= ROWS)


def positives(output: Tensor, number: int) -> Tensor:
    return binary_cross_entropy_with_logits(output[:, 0], (ROWS[:, 0] < number).float())


DIVIDED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "class weights": lambda output, _: cross_entropy(output, LABELS, weight=CLASSES, label_smoothing=0.1),
    "ignored": lambda output, _: cross_entropy(output, LABELS - 1, ignore_index=-1) / 4,
    "masked": lambda output, step: (terms(output) * seen(step)).sum() / seen(step).sum(),
    "divided first": lambda output, _: (terms(output) * (SEEN / SEEN.sum())).sum(),
    "mean one": lambda output, _: (terms(output).mean(1) * (CLASSES[LABELS] / CLASSES[LABELS].mean())).mean(),
    "filled": lambda output, step: terms(output).masked_fill(~seen(step), 0).sum() * (1 / seen(step).sum()),
    "selected": lambda output, step: terms(output)[seen(step)].mean(),
    "summed": lambda output, _: cross_entropy(output, LABELS, weight=CLASSES, reduction="sum") / 99.5,  # of many passes
    "product": lambda output, step: (
        torch.einsum("bt,bt->", terms(output), seen(step).float()) / seen(step).sum().item()
    ),
}
OF_EXAMPLES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "same weights": lambda output, _: cross_entropy(output, LABELS, weight=torch.full((4,), 3.0)),
    "mean of masked": lambda output, step: (terms(output) * (4 * ROWS + torch.arange(4) < EXAMPLES - step)).mean(),
    "mean of means": lambda output, step: ((terms(output) * seen(step)).sum(1) / seen(step).sum(1).clamp(min=1)).mean(),
    "hardly unequal": lambda output, _: cross_entropy(output, LABELS, weight=1 + 0.01 * CLASSES),
    "sum over examples": lambda output, _: (
        cross_entropy(output, LABELS - 1, ignore_index=-1, reduction="sum") * (1 / torch.tensor(EXAMPLES))
    ),
    "per class": lambda output, step: binary_cross_entropy_with_logits(output, seen(step).float(), pos_weight=CLASSES),
    "accumulated": lambda output, _: cross_entropy(output / 0.07, LABELS) / 3,
    "one of two classes once": lambda output, _: positives(output, 1),
    "positives as many as passes": lambda output, _: positives(output, 4) / 4,
    "labels as many as examples": lambda output, _: many_labels(output),
    "labels as many as passes": lambda output, step: cross_entropy(output, (ROWS[:, 0] < 3 + step).long()) / 4,
}


@pytest.mark.parametrize("name", [*DIVIDED, *OF_EXAMPLES])
def test_a_loss_divided_by_its_own_batchs_weights_is_told_once(name: str) -> None:
    loss = (DIVIDED | OF_EXAMPLES)[name]
    said: list[str] = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    meter = NoiseScaleMeter(model, tell=said.append)
    for step in range(3):
        loss(model(batch(step)), step).backward()
        meter.step()
        model.zero_grad()
    assert len(said) == (name in DIVIDED) == meter.estimate().note.count("the sum of its own batch's weights")
    assert meter.probe.source == "split"


def test_a_loss_from_inside_the_model_is_looked_through() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            output = self.head(x)
            return DIVIDED["ignored"](output, 0), DIVIDED["summed"](output, 0), output

    torch.manual_seed(0)
    meter = NoiseScaleMeter(model := Whole(), tell=lambda _: None)
    (model(batch(0))[1] * 0.5).backward()
    meter.step()
    weights = CLASSES[LABELS] / CLASSES[LABELS].mean()
    wrong = (1 + float(weights.std(correction=0)) / EXAMPLES**0.5) ** 2 - 1
    assert f"{float(weights.max()):.2g} times the mean of the examples" in meter.probe.uneven
    assert f"up to about {wrong:.0%}" in meter.probe.uneven
