"""Counting the examples of a forward pass."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
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
