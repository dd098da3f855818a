"""The noise scale of every workload's model against a loop over the examples."""

from typing import Any

import pytest
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cbs.compute.seeding import generator, seeded
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.check import CheckReport
from cbs.trial.config import Choice
from cbs.workloads import WORKLOADS, build_workload
from tests.kinds import kinds_of

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in WORKLOADS},
    "llama": ("text", {"size": "llama-200k", "layers": 1}),
    "biases": ("text", {"size": "gpt2-small", "width": 32, "heads": 2, "layers": 1, "context": 16}),
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


@pytest.mark.parametrize("variant", kinds_of(VARIANTS, [*WORKLOADS, "llama"]))
def test_the_noise_scale_is_that_of_a_loop_over_examples(variant: str) -> None:
    found = checked(*VARIANTS[variant], "split")
    assert found.ok, str(found)
    assert found.source == "split"
    assert not found.coupled
