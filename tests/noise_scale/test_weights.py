"""Losses that are divided by the sum of weights of their own batch are told."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cbs.noise_scale import NoiseScaleMeter
from tests.noise_scale.loops import EXAMPLES, batch

ROWS = torch.arange(EXAMPLES)[:, None]


def many_labels(output: Tensor) -> Tensor:
    """A quarter of the examples have all four labels."""
    labels = (len(output) > 4 * ROWS[: len(output)]).expand(-1, 4).float()
    return binary_cross_entropy_with_logits(output, labels, reduction="none").sum(1).mean()


def test_labels_as_many_as_examples_are_no_weights_where_batches_differ_in_size() -> None:
    said: list[str] = []
    meter = NoiseScaleMeter(model := nn.Linear(5, 4), tell=said.append)
    for size in (16, 12):
        many_labels(model(batch(size)[:size])).backward()
        meter.step()
        model.zero_grad()
    assert not said
