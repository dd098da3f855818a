"""Losses that score examples against targets of others, as mixup does, are refused."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from cbs.errors import ConfigError
from tests.noise_scale.loops import EXAMPLES, batch
from tests.noise_scale.test_shared_by_batch import labelled, mixed, of_mixed, rearranged, spelled_out, with_targets


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
