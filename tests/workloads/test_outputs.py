"""Workloads that show their outputs: both halves of the loss, and samples of its curvature."""

import pytest
import torch
from torch.func import hessian

from cbs.compute import seeding
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
