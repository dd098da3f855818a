"""Every workload: its noise scale against a loop over examples, both halves of its loss, samples of its curvature."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian
from torch.utils._pytree import tree_map

from cbs.compute import seeding
from cbs.compute.seeding import generator, seeded
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.check import CheckReport
from cbs.trial.config import Choice
from cbs.workloads import WORKLOADS, build_workload
from cbs.workloads.base import PredictiveWorkload
from tests.kinds import kinds_of

PREDICTIVE = [name for name in WORKLOADS if isinstance(build_workload(Choice(name=name)), PredictiveWorkload)]
SAMPLES = 4000


def test_the_built_in_workloads_show_their_outputs() -> None:
    assert {"text", "noisy_quadratic"} <= set(PREDICTIVE)


@pytest.mark.parametrize("name", PREDICTIVE)
def test_the_two_halves_are_the_loss(name: str) -> None:
    workload = build_workload(Choice(name=name))
    assert isinstance(workload, PredictiveWorkload)
    model = workload.build_model()
    batch = workload.training_stream(seeding.generator(0, "data")).next(3)
    outputs = workload.outputs(model, batch)
    assert len(outputs) == 3
    torch.testing.assert_close(workload.output_losses(outputs, batch), workload.example_losses(model, batch))


@pytest.mark.parametrize("name", kinds_of(PREDICTIVE, PREDICTIVE[::2]))
def test_curvature_samples_have_the_hessian_as_their_covariance(name: str) -> None:
    workload = build_workload(Choice(name=name, options={"dimension": 40} if name == "noisy_quadratic" else {}))
    assert isinstance(workload, PredictiveWorkload)
    torch.manual_seed(0)
    model = workload.build_model()
    batch = workload.training_stream(seeding.generator(0, "data")).next(1)
    generator = seeding.generator(0, "optimizer")
    # A short piece of the outputs keeps the Hessian small; larger logits make the probabilities uneven.
    outputs = 3 * workload.outputs(model, batch).detach()
    keep = torch.arange(min(outputs.numel(), 200))

    def loss(part: torch.Tensor) -> torch.Tensor:
        whole = outputs.flatten().index_copy(0, keep, part)
        return workload.output_losses(whole.view_as(outputs), batch).sum()

    truth = hessian(loss)(outputs.flatten()[keep])
    draws = torch.stack([workload.curvature_sample(outputs, batch, generator).flatten()[keep] for _ in range(SAMPLES)])
    # The mean of N independent z z' is off by sqrt((E|z|^4 - |H|^2) / N) in Frobenius norm, and that of z likewise.
    error = (draws.square().sum(1).square().mean() - truth.square().sum()).sqrt() / SAMPLES**0.5
    assert (draws.T @ draws / SAMPLES - truth).norm() < 2 * error
    assert error < 0.25 * truth.norm()
    assert draws.mean(0).norm() < 4 * (truth.trace() / SAMPLES).sqrt()  # an output of one number is a normal one


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
