r"""Curvature of the loss over a fixed set of training examples: the Hessian's top eigenvalue and its trace.

The eigenvalue is the largest Ritz value of :data:`STEPS` Lanczos steps with full reorthogonalization (Golub and Van
Loan 2013, section 10.1), which approaches it from below. The trace is Hutchinson's estimate (1990): the mean of
:math:`z^\top H z` over :data:`PROBES` vectors z of random signs, the same in every trial; its standard deviation is at
most :math:`\sqrt{2/n}\,|H|_F` for n of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.compute.hessian import flat, hessian_product, shaped
from cbs.errors import ConfigError
from cbs.training.metrics import METRICS, FixedExamples, Metric, MetricInputs

EXAMPLES = 256
"""Number of examples in the fixed set, which pass one after the other in parts of at most the configured size."""

STEPS, PROBES = 16, 16


class HessianMetric(Metric):
    """Base class: a number that follows from products of the Hessian with vectors."""

    unit = ""

    def __init__(self, inputs: MetricInputs) -> None:
        if not inputs.one_process:
            raise ConfigError("metrics of the Hessian need whole tensors in one process")
        self._inputs, self._examples = inputs, FixedExamples(inputs, EXAMPLES, EXAMPLES, "hessian")
        self._parameters = [part for part in inputs.model.parameters() if part.requires_grad]

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian of the mean loss times a vector, ``[d]`` in float64."""
        total = torch.zeros_like(vector)
        for part in self._examples:
            with self._inputs.beside():
                times = hessian_product(self._sum, part, self._parameters)
                total += flat(times(shaped(vector, self._parameters)))
        return total / self._examples.count

    def _sum(self, batch: object) -> Tensor:
        return self._inputs.workload.example_losses(self._inputs.model, batch).sum()

    def random(self, place: int) -> Tensor:
        """Return a vector of random signs, the same in every trial, ``[d]``."""
        size = sum(part.numel() for part in self._parameters)
        signs = torch.randint(0, 2, (size,), generator=seeding.generator(place, "hessian vectors"))
        return (2.0 * signs.double() - 1.0).to(self._parameters[0].device)


@METRICS.register("hessian_top")
class HessianTop(HessianMetric):
    """The largest eigenvalue of the Hessian."""

    def value(self) -> float:
        basis, rows = [self.random(0)], []
        basis[0] /= basis[0].norm()
        for step in range(min(STEPS, len(basis[0]))):
            image = self.product(basis[step])
            rows.append(torch.stack([vector @ image for vector in basis]))
            for _ in range(2):  # once more for what rounding leaves
                image = image - sum((vector @ image) * vector for vector in basis)
            # The basis spans an invariant subspace: nothing is left but rounding, which would add random directions.
            if float(image.norm()) < 1e-10 * float(rows[0].abs().max() + 1e-300):
                break
            basis.append(image / image.norm())
        size = len(rows)
        projected = torch.zeros(size, size, dtype=torch.float64)
        for place, row in enumerate(rows):
            projected[place, : place + 1] = row[: place + 1]
        return float(torch.linalg.eigvalsh(projected, UPLO="L")[-1])


@METRICS.register("hessian_trace")
class HessianTrace(HessianMetric):
    """The trace of the Hessian."""

    def value(self) -> float:
        vectors = map(self.random, range(PROBES))
        return float(torch.stack([vector @ self.product(vector) for vector in vectors]).mean())
