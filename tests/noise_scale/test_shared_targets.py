"""Losses that score examples against targets of others, as mixup does, are refused."""

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


def test_targets_may_be_shared_within_groups() -> None:
    def within(members: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        return lambda step: (labelled(step), rearranged(labelled(step), step, members))

    assert with_targets(within(4), groups=4, every=1).estimate().steps == 21
    with pytest.raises(ConfigError, match="targets of a batch twice"):
        with_targets(within(EXAMPLES), groups=4)


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
