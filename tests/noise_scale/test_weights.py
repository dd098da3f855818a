"""Losses that are divided by the sum of weights of their own batch are told."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from cbs.noise_scale import NoiseScaleMeter
from tests.noise_scale.loops import EXAMPLES, batch


def terms(output: Tensor) -> Tensor:
    return output.square()


ROWS = torch.arange(EXAMPLES)[:, None]
SEEN = (torch.arange(EXAMPLES * 4).view(-1, 4) % 7 < 5) & (torch.arange(4) <= ROWS)
"""Which tokens of padded sequences count: 41 of 64."""
LABELS = torch.arange(EXAMPLES) % 5 % 4
CLASSES = torch.tensor([0.4, 1.0, 2.0, 7.3])


def seen(step: int) -> Tensor:
    """Fewer of them in every step."""
    return SEEN & (step <= ROWS)


def positives(output: Tensor, number: int) -> Tensor:
    return binary_cross_entropy_with_logits(output[:, 0], (ROWS[:, 0] < number).float())


def many_labels(output: Tensor) -> Tensor:
    """A quarter of the examples have all four labels."""
    labels = (len(output) > 4 * ROWS[: len(output)]).expand(-1, 4).float()
    return binary_cross_entropy_with_logits(output, labels, reduction="none").sum(1).mean()


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


def test_labels_as_many_as_examples_are_no_weights_where_batches_differ_in_size() -> None:
    said: list[str] = []
    meter = NoiseScaleMeter(model := nn.Linear(5, 4), tell=said.append)
    for size in (16, 12):
        many_labels(model(batch(size)[:size])).backward()
        meter.step()
        model.zero_grad()
    assert not said


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
