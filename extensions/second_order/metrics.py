"""Metrics of the curvature of the loss: the largest eigenvalue of the Hessian, and its trace."""

import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.compute.hessian import flat, hessian_product, shaped
from cbs.training.metrics import METRICS, OverFixedExamples

# Products for the top eigenvalue, each along a direction more, and for the trace, each with random signs
STEPS, PROBES = 16, 16


class HessianMetric(OverFixedExamples):
    """Base class: a number that follows from products of the Hessian with vectors."""

    needs = "metrics of the Hessian need"
    # fewer than of the norm of the gradient: each of the products costs two of its passes
    examples, at_once, name = 256, 256, "hessian"

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian of the mean loss times a vector, ``[d]`` in float64."""
        total = torch.zeros_like(vector)
        for part in self.fixed:
            with self.inputs.beside():
                times = hessian_product(self.total, part, self.parameters)
                total += flat(times(shaped(vector, self.parameters)))
        return total / self.fixed.count

    def random(self, index: int) -> Tensor:
        """Return a vector of random signs, the same in every trial, ``[d]``."""
        size = sum(part.numel() for part in self.parameters)
        signs = torch.randint(0, 2, (size,), generator=seeding.generator(index, "hessian vectors"))
        return (2.0 * signs.double() - 1.0).to(self.parameters[0].device)


@METRICS.register("hessian_top")
class HessianTop(HessianMetric):
    """The largest eigenvalue of the Hessian."""

    def value(self) -> float:
        # Lanczos, every direction made orthogonal to all before it, not to two alone: rounding would bring them back.
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
        for index, row in enumerate(rows):
            projected[index, : index + 1] = row[: index + 1]
        # Only the lower triangle is filled in; the largest eigenvalue approaches the Hessian's from below.
        return float(torch.linalg.eigvalsh(projected, UPLO="L")[-1])


@METRICS.register("hessian_trace")
class HessianTrace(HessianMetric):
    """The trace of the Hessian."""

    def value(self) -> float:
        # Hutchinson 1990: over vectors z of random signs the mean of z'Hz is the trace.
        vectors = map(self.random, range(PROBES))
        return float(torch.stack([vector @ self.product(vector) for vector in vectors]).mean())
