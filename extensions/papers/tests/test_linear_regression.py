"""Linear regression against its closed forms: the loss, and the mean and covariance of an example's gradient."""

import pytest
import torch

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from extensions.papers.workloads.linear_regression import LinearRegressionWorkload


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


def test_spectrum_and_teacher_are_power_laws() -> None:
    workload = build(dimension=4, spectrum_power=2.0, teacher_power=1.0)
    torch.testing.assert_close(workload.spectrum, torch.tensor([1, 1 / 4, 1 / 9, 1 / 16]))
    torch.testing.assert_close(workload.teacher.square(), torch.tensor([1, 1 / 2, 1 / 3, 1 / 4]))
    assert workload.excess_loss(torch.zeros(4)) == pytest.approx(0.5 * sum(i**-3 for i in range(1, 5)))


@pytest.mark.parametrize(
    "options", [{"dimension": 0}, {"noise": -1.0}, {"spectrum_power": -0.5}, {"teacher_power": "2"}]
)
def test_bad_options_are_one_line_errors(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        build(**options)
