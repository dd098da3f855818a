"""One measurement of a model where it stands: curvature, gradient, gradient noise, on batches of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.compute.auxiliary_pass import evaluating
from cbs.errors import ConfigError
from cbs.spectrum.curvature import curvature_product, flat
from cbs.spectrum.gradients import LEAST, Sampler
from cbs.spectrum.lanczos import lanczos, outside, without
from cbs.spectrum.record import GAUSS_NEWTON, HESSIAN, SpectralMeasure, SpectrumSample
from cbs.training.loop import TrainingLoop
from cbs.training.problem import problem_of
from cbs.workloads.base import Batch, PredictiveWorkload, TrainingStream

AUTO = "auto"
CURVATURES = (AUTO, GAUSS_NEWTON, HESSIAN)

SETTLED = 0.05
"""Residual of a Ritz vector, as part of its Ritz value, up to which the noise is measured along it by itself."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a measurement may cost.

    Attributes:
        curvature: of :data:`CURVATURES`; ``auto`` is the Gauss-Newton matrix where the workload tells its outputs.
        nodes: most points of a measure. What noiseless SGD takes off the loss in its first ``nodes / 2`` steps is then
            exact, as ``((1 - lr h)^2k - 1) / h`` is a polynomial of degree ``2k - 1`` in the curvature.
        curvature_examples: of the batch that the curvature is of.
        gradient_examples: that the gradient is of.
        noise_vectors: vectors with the covariance of the gradient noise.
    """

    curvature: str = AUTO
    nodes: int = 32
    curvature_examples: int = 256
    gradient_examples: int = 8192
    noise_vectors: int = 1

    def __post_init__(self) -> None:
        if self.curvature not in CURVATURES:
            raise ConfigError(f"curvature must be one of {', '.join(CURVATURES)}, got {self.curvature!r}")
        for name in ("nodes", "curvature_examples", "noise_vectors"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', ' ')} must be at least 1, got {getattr(self, name)}")
        if self.gradient_examples < LEAST:
            raise ConfigError(f"gradient examples must be at least {LEAST}, got {self.gradient_examples}")

    @property
    def vectors(self) -> int:
        """Number of spectral measures in a sample."""
        return 2 + self.noise_vectors


def curvature_kind(loop: TrainingLoop, effort: Effort) -> str:
    """Which curvature is measured."""
    if effort.curvature != AUTO:
        return effort.curvature
    return GAUSS_NEWTON if isinstance(loop.workload, PredictiveWorkload) else HESSIAN


def measure(
    loop: TrainingLoop,
    start: Sequence[Tensor],
    effort: Effort,
    *,
    point: str,
    replicate: int,
    progress: Callable[[], None] = lambda: None,
) -> SpectrumSample:
    """Measure the model of a loop where it stands, in evaluation mode: dropout is off, statistics of batches are fixed.

    Args:
        loop: training as far as it went; stays as it is.
        start: its parameters before training.
        effort: what it may cost.
        point: what the place is called.
        replicate: number of the measurement, which its batches and signs follow.
        progress: called after every vector.

    Raises:
        ConfigError: if the model has nothing to train, or does not allow the curvature.
    """
    config, model = loop.config, loop.model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter; there is no curvature to measure")
    if any(parameter.is_complex() for parameter in parameters):
        raise ConfigError("the model has complex parameters, and a spectrum is measured in real ones")
    kind = curvature_kind(loop, effort)
    problem = (
        problem_of(loop.workload, model, config, loop.device, loop.micro_batch_size) if kind == GAUSS_NEWTON else None
    )

    def loss(batch: Batch) -> Tensor:
        return loop.workload.example_losses(model, batch).mean()

    def gradient(batch: Batch) -> tuple[float, Tensor]:
        with torch.enable_grad():
            value = loss(loop.to_device(batch))
        return float(value.detach()), flat(torch.autograd.grad(value, parameters, materialize_grads=True))

    purpose = f"spectrum {point} {replicate}"
    signs = seeding.generator(config.seed, f"{purpose} signs")

    def stream(part: str) -> TrainingStream:
        return loop.workload.training_stream(seeding.generator(config.seed, f"{purpose} {part}"))

    sampler = Sampler(gradient, lambda: stream("gradient"), effort.gradient_examples)
    with evaluating(model):
        batch = loop.to_device(stream("curvature").next(effort.curvature_examples))
        product = curvature_product(kind, model, loss, problem, batch)
        (first, second), train_loss = sampler.halves()
        along = lanczos(product, first, effort.nodes)
        measures = [SpectralMeasure("gradient", along.points, along.weights(second))]
        progress()
        moved = flat(start) - flat(parameters)
        if bool(moved.any()):
            moved = product(moved)
            along = lanczos(product, first + moved, effort.nodes)
        measures.append(SpectralMeasure("start", along.points, along.weights(second + moved)))
        progress()
        # Along the few directions that hold most, random vectors tell least: there the noise is measured one by one.
        values, directions = along.settled(SETTLED)
        variances, vectors = sampler.noise(directions, effort.noise_vectors, signs)
        measures.append(SpectralMeasure("noise", values, variances))
        rest = without(product, directions)
        for vector in vectors:
            along = lanczos(rest, outside(vector, directions), effort.nodes)
            measures.append(SpectralMeasure("noise", along.points, along.weights() / len(vectors)))
            progress()
    return SpectrumSample(
        point=point,
        replicate=replicate,
        seed=config.seed,
        step=loop.evaluations[-1].step,
        value=loop.evaluations[-1].value,
        start_value=loop.evaluations[0].value,
        train_loss=train_loss,
        gradient_examples=sampler.size * sampler.batches,
        curvature_examples=effort.curvature_examples,
        measures=tuple(measures),
    )
