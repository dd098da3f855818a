"""The noise scale of every workload's model against a loop over the examples; what mixes examples is refused."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cbs.compute.seeding import generator, seeded
from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.check import CheckReport
from cbs.trial.config import Choice
from cbs.workloads import WORKLOADS, build_workload
from tests.kinds import kinds_of

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in WORKLOADS},
    "llama": ("text", {"size": "llama-200k", "layers": 1}),
    "biases": ("text", {"size": "gpt2-small", "width": 32, "heads": 2, "layers": 1, "context": 16}),
    "two contexts": ("masked_text", {"later_context": 48, "switch": 3}),
    **{model: ("images", {"model": model, "width": 8}) for model in ("resnet8", "resnet18", "resnet50", "wrn-10-2")},
    "lenet": ("images", {"model": "lenet"}),
    "vgg11": ("images", {"model": "vgg11", "width": 4, "image_size": 32}),
    "no norm": ("images", {"model": "resnet8", "width": 8, "norm": "none"}),
}


def checked(name: str, options: dict[str, Any], source: str) -> CheckReport:
    workload = build_workload(Choice(name=name, options=options))
    with seeded(0, "init"):
        model = workload.build_model().double()  # deep convolutions in single precision differ by 4 % in small layers
    batch = workload.training_stream(generator(0, "data")).next(6)
    batch = tree_map(lambda part: part.double() if part.is_floating_point() else part, batch)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return workload.example_losses(model, batch).mean()

    return NoiseScaleMeter.check(model, loss, batch, source=source, count=lambda args, kwargs: 6)


@pytest.mark.parametrize("variant", kinds_of(VARIANTS, [*WORKLOADS, "llama", "two contexts", "resnet8"]))
def test_the_noise_scale_is_that_of_a_loop_over_examples(variant: str) -> None:
    found = checked(*VARIANTS[variant], "split")
    assert found.ok, str(found)
    assert found.source == "split"
    assert not found.coupled


def test_batch_normalisation_is_refused() -> None:
    options = {"model": "resnet8", "width": 8, "norm": "batch"}
    found = checked("images", options, "auto")
    assert found.source == "accumulation"
    assert "(BatchNorm2d) mixes the examples of a batch" in found.refusal
    with pytest.raises(ConfigError, match="mixes the examples of a batch"):
        checked("images", options, "split")
