"""Counting the examples of a forward pass."""

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.sources import SOURCES, Source


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
