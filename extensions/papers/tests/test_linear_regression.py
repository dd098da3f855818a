"""Linear regression against its closed forms: the loss, and the mean and covariance of an example's gradient."""

from typing import Any

import pytest
import torch

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from extensions.papers.workloads.linear_regression import LinearRegressionWorkload
from tests.kinds import kinds_of
from tests.workloads.test_every_workload import checked


def build(**options: float) -> LinearRegressionWorkload:
    return build_workload(Choice(name="linear_regression", options=options))


def test_the_metric_is_the_expected_loss_above_its_floor() -> None:
    workload = build(dimension=5, noise=0.7)
    model = workload.build_model()
    torch.manual_seed(0)
    with torch.no_grad():
        model.weight.normal_()
        losses = workload.example_losses(model, workload.training_stream(seeding.generator(0, "data")).next(200_000))
    standard_error = losses.std() / len(losses) ** 0.5
    assert abs(losses.mean() - 0.7**2 / 2 - workload.validate(model)) < 4 * standard_error
    with torch.no_grad():
        model.weight.copy_(workload.teacher)
    assert workload.validate(model) == 0.0


def test_gradients_have_the_stated_mean_and_covariance() -> None:
    workload = build(dimension=3, noise=0.5, spectrum_power=0.5)
    model = workload.build_model()
    features, responses = workload.training_stream(seeding.generator(0, "data")).next(400_000)
    residuals = -responses  # the model starts at 0
    gradients = (residuals[:, None] * features).double()
    spectrum, off = workload.spectrum.double(), -workload.teacher.double()
    mean = spectrum * off
    covariance = torch.outer(mean, mean) + (2 * workload.validate(model) + 0.25) * spectrum.diag()
    assert (gradients.mean(0) - mean).abs().max() < 4 * (covariance.diag().max() / 400_000) ** 0.5
    # Fourth moments of products of three normals are large: 2 % of the largest entry is about 4 standard errors.
    assert (torch.cov(gradients.T) - covariance).abs().max() < 0.02 * covariance.max()
    workload.example_losses(model, (features, responses)).mean().backward()
    torch.testing.assert_close(model.weight.grad[0].double(), gradients.mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"dimension": 0}, {"noise": -1.0}, {"spectrum_power": -0.5}, {"teacher_power": "2"}]
)
def test_bad_options_are_one_line_errors(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        build(**options)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "two contexts": ("masked_text", {"later_context": 48, "switch": 3}),
    **{model: ("images", {"model": model, "width": 8}) for model in ("resnet8", "resnet18", "resnet50", "wrn-10-2")},
    "lenet": ("images", {"model": "lenet"}),
    "vgg11": ("images", {"model": "vgg11", "width": 4, "image_size": 32}),
    "no norm": ("images", {"model": "resnet8", "width": 8, "norm": "none"}),
}


@pytest.mark.parametrize("variant", kinds_of(VARIANTS, ["two contexts", "resnet8"]))
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
