"""One measurement of curvature, gradient and gradient noise at a model's current weights, on batches of its own."""

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
"""Largest residual of a Ritz vector, relative to its Ritz value, for which the noise along it is measured directly."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The cost of a measurement.

    Attributes:
        curvature: one of :data:`CURVATURES`; ``auto`` is the Gauss-Newton matrix where the workload exposes its
            outputs.
        nodes: largest number of points in a measure. The loss decrease of noiseless SGD in its first ``nodes / 2``
            steps is then exact, because ``((1 - lr h)^2k - 1) / h`` is a polynomial of degree ``2k - 1`` in the
            curvature.
        curvature_examples: number of examples in the batch for the curvature.
        gradient_examples: number of examples for the gradient.
        noise_vectors: number of random vectors with the covariance of the gradient noise.
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
    """Return the kind of curvature that is measured."""
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
    """Measure a model at its current weights, in evaluation mode: without dropout, with fixed batch statistics.

    Args:
        loop: training loop with the model; it stays as it is.
        start: parameters before training.
        effort: cost of the measurement.
        point: name of the point in training.
        replicate: number of the measurement, which determines its batches and random signs.
        progress: called after every vector.

    Raises:
        ConfigError: if the model has no trainable parameter, or does not support the curvature.
    """
    config, model = loop.config, loop.model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter; there is no curvature to measure")
    if any(parameter.is_complex() for parameter in parameters):
        raise ConfigError("the model has complex parameters; a spectrum can be measured only for real ones")
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
        # Random vectors are least accurate along the few dominant directions, so measure the noise there directly.
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
