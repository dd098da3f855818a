"""Metrics of the Hessian, against a quadratic that is known and a network whose Hessian is dense."""

import math
from types import SimpleNamespace

import pytest
import torch

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.training.metrics import METRICS, MetricInputs
from cbs.trial.config import Choice
from cbs.workloads import build_workload


def test_the_curvature_is_that_of_the_quadratic_however_the_examples_are_cut():
    workload = build_workload(Choice(name="noisy_quadratic", options={"dimension": 10}))
    with seeding.seeded(3, "init"):
        model = workload.build_model()
    curvatures = [1 / rank for rank in range(1, 11)]
    for size in (None, 100):
        inputs = MetricInputs(workload, model, lambda batch: batch, size)
        # signs square to 1, so the trace of a diagonal matrix is exact, and so are ten steps in ten dimensions
        assert METRICS.make("hessian_top", inputs).value() == pytest.approx(max(curvatures), rel=1e-5)
        assert METRICS.make("hessian_trace", inputs).value() == pytest.approx(sum(curvatures), rel=1e-5)
    with pytest.raises(ConfigError, match="need whole tensors in one process"):
        METRICS.make("hessian_top", MetricInputs(workload, model, lambda batch: batch, one_process=False))


def test_the_curvature_of_a_network_is_that_of_its_dense_hessian():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    data = torch.randn(256, 3)

    def losses(module, batch):
        return torch.nn.functional.cross_entropy(module(batch), batch.argmax(dim=1), reduction="none")

    stream = SimpleNamespace(next=lambda size: data[:size])
    workload = SimpleNamespace(example_losses=losses, training_stream=lambda generator: stream)
    names, values = zip(*((name, part.detach()) for name, part in model.named_parameters()), strict=True)

    def of(vector):
        parts = vector.split([value.numel() for value in values])
        given = {name: part.view_as(value) for name, part, value in zip(names, parts, values, strict=True)}
        logits = torch.func.functional_call(model, given, (data,))
        return torch.nn.functional.cross_entropy(logits, data.argmax(dim=1))

    dense = torch.func.hessian(of)(torch.cat([value.reshape(-1) for value in values])).double()
    inputs = MetricInputs(workload, model, lambda batch: batch)
    eigenvalues = torch.linalg.eigvalsh(dense)
    assert METRICS.make("hessian_top", inputs).value() == pytest.approx(float(eigenvalues[-1]), rel=1e-3)
    deviation = math.sqrt(2 / 16) * float(dense.norm())
    assert abs(METRICS.make("hessian_trace", inputs).value() - float(dense.trace())) < 3 * deviation
