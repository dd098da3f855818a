r"""A quadratic loss with independent gradient noise: the workload for which all answers are known in closed form.

The model of Zhang et al. (2019), arXiv:1907.04164, on which the whole chain of measurement can be checked against
closed forms. The parameters :math:`\theta \in R^d` are initialized from N(0, I). An example is a noise vector
:math:`\xi \sim N(0, diag(c))`, and its loss is

.. math:: \ell(\theta, \xi) = \frac12 \sum_i h_i \theta_i^2 + \xi \cdot \theta,

so its gradient is exactly :math:`h \theta + \xi`. The curvatures are :math:`h_i = i^{-power}` and
:math:`c = noise \cdot h`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.registry.values import whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.streams import DrawnExamples


class QuadraticModel(nn.Module):
    """Parameters ``theta`` and buffers ``curvature`` and ``noise``, all of shape ``[dimension]``."""

    curvature: Tensor
    noise: Tensor

    def __init__(self, curvature: Tensor, noise: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(len(curvature)))
        self.register_buffer("curvature", curvature)
        self.register_buffer("noise", noise)

    def forward(self, examples: Tensor) -> Tensor:
        """Return the losses of examples of shape ``[examples, dimension]``, shape ``[examples]``."""
        return self.loss() + examples @ self.theta

    def loss(self) -> Tensor:
        """Return the loss without noise, a scalar."""
        return 0.5 * (self.curvature * self.theta.square()).sum()


class NoiseStream(DrawnExamples):
    """Stream of independent Gaussian vectors with standard deviations ``scale``, in an order fixed by ``generator``."""

    def __init__(self, scale: Tensor, generator: torch.Generator) -> None:
        super().__init__(self._draw_noise, self._as_drawn, generator)
        self._scale = scale

    def _draw_noise(self, examples: int, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(examples, len(self._scale), generator=generator).mul_(self._scale),)

    @staticmethod
    def _as_drawn(noise: Tensor) -> Tensor:
        return noise


class NoisyQuadraticWorkload:
    """The noisy quadratic, see the module. The metric is the exact loss without noise."""

    metric = "validation_loss"
    metric_unit = "loss"
    direction: Direction = "below"
    default_target = 0.1
    example_unit = "sample"
    tokens_per_example: int | None = None
    data_hash: str | None = None

    def __init__(self, curvature: Tensor, noise: Tensor) -> None:
        self.curvature = curvature
        self.noise = noise

    def build_model(self) -> QuadraticModel:
        """Return a model with parameters drawn from N(0, I)."""
        return QuadraticModel(self.curvature.clone(), self.noise.clone())

    def training_stream(self, generator: torch.Generator) -> NoiseStream:
        """Return an endless stream of new examples."""
        return NoiseStream(self.noise.sqrt(), generator)

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the loss of every example, shape ``[examples]``."""
        return model(batch)

    def outputs(self, model: Any, batch: Tensor) -> Tensor:
        """Return the parameters, repeated for every example, shape ``[examples, dimension]``."""
        return model.theta.expand(len(batch), -1)

    def output_losses(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Return the loss of every example, shape ``[examples]``."""
        return 0.5 * (outputs.square() @ self.curvature.to(outputs)) + (outputs * batch).sum(1)

    def curvature_sample(self, outputs: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Return normal vectors whose variances are the curvatures."""
        return torch.randn(outputs.shape, generator=generator).to(outputs) * self.curvature.to(outputs).sqrt()

    def validate(self, model: Any) -> float:
        """Return the loss without noise."""
        return float(model.loss().detach())


@WORKLOADS.register("noisy_quadratic")
def noisy_quadratic(
    *, dimension: int = 1000, noise: float = 1.0, spectrum_power: float = 1.0
) -> NoisyQuadraticWorkload:
    """A noisy quadratic.

    Args:
        dimension: number of parameters.
        noise: variance of a single example's gradient noise, as a multiple of the curvature; 0 for none.
        spectrum_power: the i-th curvature is ``i ** -spectrum_power``.

    Raises:
        ConfigError: if an option is invalid.
    """
    whole("dimension", dimension)
    if not 0.0 <= noise < float("inf"):
        raise ConfigError(f"noise must be finite and at least 0, got {noise}")
    if not 0.0 <= spectrum_power < float("inf"):
        raise ConfigError(f"spectrum_power must be finite and at least 0, got {spectrum_power}")
    curvature = torch.arange(1, dimension + 1, dtype=torch.float64).pow(-spectrum_power)
    return NoisyQuadraticWorkload(curvature.float(), (noise * curvature).float())
