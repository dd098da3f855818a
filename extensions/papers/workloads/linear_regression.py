r"""Least squares on Gaussian features with known covariance: the gradient noise decreases with the loss.

An example is :math:`x \sim N(0, diag(\lambda))` with :math:`\lambda_i = i^{-a}` and
:math:`y = x \cdot w^* + \sigma \epsilon`, its loss :math:`\frac12 (x \cdot w - y)^2`. The model starts at 0 and the
teacher is :math:`w^*_i = i^{-b/2}`. The metric is the expected loss above its minimum :math:`\sigma^2/2`,

.. math:: R(w) = \frac12 \sum_i \lambda_i (w_i - w^*_i)^2.

With :math:`\delta = w - w^*`, the gradient of an example has the mean :math:`\lambda_i \delta_i` and the
covariance :math:`\lambda_i \lambda_j \delta_i \delta_j + (2R + \sigma^2)\, \lambda_i [i = j]` (Isserlis' theorem), so
unlike in ``noisy_quadratic`` its noise depends on the weights. Power laws of spectrum and teacher are the "capacity"
and "source" conditions of the theory of kernel regression.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cbs.registry.values import number, whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import PredictiveWorkload
from cbs.workloads.streams import DrawnExamples

Points = tuple[Tensor, Tensor]  # Features ``[examples, dimension]`` and responses ``[examples]``


class LinearRegressionWorkload(PredictiveWorkload):
    """Linear regression with known spectrum, see the module. The metric is the exact excess loss."""

    metric = "validation_loss"
    metric_unit = "excess loss"
    direction: Direction = "below"
    example_unit = "sample"
    tokens_per_example: int | None = None
    data_hash: str | None = None

    def __init__(self, spectrum: Tensor, teacher: Tensor, noise: float) -> None:
        self.spectrum = spectrum
        self.teacher = teacher
        self.noise = noise
        self.default_target = float(f"{0.1 * self.excess_loss(torch.zeros_like(teacher)):.2g}")

    def excess_loss(self, weights: Tensor) -> float:
        """Return the expected loss of ``weights``, shape ``[dimension]``, minus that of the teacher."""
        off = weights.detach().double().cpu() - self.teacher.double()
        return 0.5 * float(self.spectrum.double() @ off.square())

    def build_model(self) -> nn.Linear:
        """Return a linear map to one number, without bias, initialized at zero."""
        model = nn.Linear(len(self.spectrum), 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def training_stream(self, generator: torch.Generator) -> DrawnExamples:
        """Return an endless stream of new examples."""
        return DrawnExamples(self._draw, self._make, generator)

    def _draw(self, examples: int, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(examples, len(self.spectrum) + 1, generator=generator),)

    def _make(self, normal: Tensor) -> Points:
        features = normal[:, 1:] * self.spectrum.sqrt()
        # A sum along rows, because the order of additions in a matrix product depends on the shape.
        return features, (features * self.teacher).sum(1) + self.noise * normal[:, 0]

    def outputs(self, model: nn.Module, batch: Points) -> Tensor:
        """Return predictions, shape ``[examples, 1]``."""
        return model(batch[0])

    def output_losses(self, outputs: Tensor, batch: Points) -> Tensor:
        """Return half the squared residuals, shape ``[examples]``."""
        return 0.5 * (outputs[:, 0] - batch[1]).square()

    def curvature_sample(self, outputs: Tensor, batch: Points, generator: torch.Generator) -> Tensor:
        """Return standard normal numbers: the loss has curvature 1 with respect to a prediction."""
        return torch.randn(outputs.shape, generator=generator).to(outputs)

    def validate(self, model: Any) -> float:
        """Return the exact excess loss."""
        return self.excess_loss(model.weight[0])


@WORKLOADS.register("linear_regression")
def linear_regression(
    *, dimension: int = 100, spectrum_power: float = 1.0, teacher_power: float = 1.0, noise: float = 1.0
) -> LinearRegressionWorkload:
    """Linear regression with a known spectrum.

    Args:
        dimension: number of features.
        spectrum_power: the i-th feature has variance ``i ** -spectrum_power``.
        teacher_power: the square of the i-th true weight is ``i ** -teacher_power``.
        noise: standard deviation of the noise in the responses; 0 for none.

    Raises:
        ConfigError: if an option is invalid.
    """
    index = torch.arange(1, whole("dimension of workload 'linear_regression'", dimension) + 1, dtype=torch.float64)
    options = {"spectrum_power": spectrum_power, "teacher_power": teacher_power, "noise": noise}
    for name, value in options.items():
        if value != 0:
            number(f"{name} of workload 'linear_regression'", value)
    return LinearRegressionWorkload(
        index.pow(-spectrum_power).float(), index.pow(-0.5 * teacher_power).float(), float(noise)
    )
