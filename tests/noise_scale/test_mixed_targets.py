"""A loss that holds the targets of a batch twice, in another order: its examples share targets."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from tests.noise_scale.loops import EXAMPLES, batch


def labelled(step: int, classes: int = 4) -> Tensor:
    return torch.randint(classes, (EXAMPLES,), generator=torch.Generator().manual_seed(step))


def rearranged(labels: Tensor, step: int, within: int = EXAMPLES) -> Tensor:
    """The labels in another order, in which they stay within groups of so many."""
    generator = torch.Generator().manual_seed(step)
    places = [torch.randperm(within, generator=generator) + at for at in range(0, EXAMPLES, within)]
    return labels[torch.cat(places)]


def with_targets(
    targets: Callable[[int], tuple[Tensor, Tensor]],
    loss: Callable[..., Tensor] = nn.functional.cross_entropy,
    source: str = "split",
    **options,
) -> NoiseScaleMeter:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    meter = NoiseScaleMeter(model, source=source, **options)
    for step in range(21):
        output, (one, other) = model(batch(step)), targets(step)
        (0.3 * loss(output, one) + 0.7 * loss(output, other)).backward()
        meter.step()
        model.zero_grad()
    return meter


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (lambda step: (labelled(step), rearranged(labelled(step), step)), nn.functional.cross_entropy),
        (lambda step: (labelled(step, 2), rearranged(labelled(step, 2), step)), nn.functional.cross_entropy),
        (lambda step: (batch(step)[:, :4], rearranged(batch(step)[:, :4], step)), nn.functional.mse_loss),
    ],
)
def test_a_loss_that_holds_the_targets_twice_in_another_order_is_refused(
    targets: Callable[[int], tuple[Tensor, Tensor]], loss: Callable[..., Tensor]
) -> None:
    """As under mixup with an order that the training code draws: a term is one example's, and they share targets."""
    with pytest.raises(ConfigError, match=r"targets of a batch twice, in another order.*'accumulation'"):
        with_targets(targets, loss)
    meter = with_targets(targets, loss, "auto")
    assert meter.probe.source == "accumulation"
    assert "targets of a batch twice" in meter.estimate().note


@pytest.mark.parametrize(
    "targets",
    [
        lambda step: (labelled(step), labelled(step)),
        lambda step: (labelled(step), labelled(step + 100)),
        lambda step: (labelled(step, 2), labelled(step + 100, 2)),
        # as many of each by chance, once
        lambda step: (labelled(step, 2), labelled(step + 100, 2) if step else rearranged(labelled(step, 2), step)),
        # labels and their complement, as many of each
        lambda step: (torch.arange(EXAMPLES) % 2, 1 - torch.arange(EXAMPLES) % 2),
    ],
)
def test_two_targets_of_their_own_are_measured(targets: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    meter = with_targets(targets)
    assert meter.estimate().steps == 21
    assert meter.probe.caveat == ""


def mixed(
    step: int, share: float = 0.3, smoothing: float = 0.0, *, drawn: bool = True, within: int = EXAMPLES
) -> Tensor:
    """Labels of every example and of its partner in the batch, or of an example of its own, in one tensor."""
    labels = labelled(step)
    others = rearranged(labels, step, within) if drawn else labelled(step + 100)
    one, other = (nn.functional.one_hot(each, 4).float() for each in (labels, others))
    return (1 - smoothing) * (share * one + (1 - share) * other) + smoothing / 4


def of_mixed(targets: Callable[[int], Tensor], loss: Callable[..., Tensor], **options) -> NoiseScaleMeter:
    return with_targets(lambda step: (targets(step),) * 2, loss, **options)


def spelled_out(output: Tensor, labels: Tensor) -> Tensor:
    return -(labels * output.log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.functional.mse_loss, spelled_out])
def test_labels_that_were_mixed_before_the_loss_are_unmixed(loss: Callable[..., Tensor], smoothing: float) -> None:
    with pytest.raises(ConfigError, match="targets of a batch twice, in another order"):
        of_mixed(lambda step: mixed(step, smoothing=smoothing), loss)
