"""What a trial measures beside its workload: training loss, norm of the gradient, curvature."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.compute.hessian import flat, hessian_product, shaped
from cbs.errors import ConfigError
from cbs.training.metrics import METRICS, FixedExamples, Metric, MetricInputs

POWER = 10.0  # Exponent p: half of the weight lies in the last 6 % of the examples


AT_START = 64
"""Number of examples whose mean loss is the value before the first step."""


# The current training loss: a line fitted to the losses of the steps over the logarithm of the examples, at its end.
@METRICS.register("training_loss")
class TrainingLoss(Metric):
    """Weighted mean of the training loss with its lag corrected by a linear fit.

    After the first step, a plain mean; before it, the mean loss over :data:`AT_START` examples.
    """

    def __init__(self, inputs: MetricInputs) -> None:
        self._inputs = inputs
        self._seen = 0.0
        self._sums = np.zeros(5)
        """Sums of w, w x, w x^2, w y and w x y; x = ln(e/E) with e the examples behind the weights of a loss y, and E
        all examples seen."""

    def observe(self, examples: np.ndarray, losses: np.ndarray) -> None:
        for now, loss in zip(examples.tolist(), losses.tolist(), strict=True):
            before = self._seen
            if before > 0:
                self._move(math.log(now / before))
            # The loss of a step belongs to the weights before it; before the first step these count as e = 1.
            x = math.log(max(before, 1.0) / now)
            weight = math.exp(POWER * x)
            self._sums += weight * np.array([1.0, x, x * x, loss, x * loss])
            self._seen = float(now)

    def _move(self, shift: float) -> None:
        """Increase the number of examples seen by the factor ``exp(shift)``, which lowers every x by ``shift``."""
        w, wx, wxx, wy, wxy = self._sums
        moved = np.array([w, wx - shift * w, wxx - 2 * shift * wx + shift * shift * w, wy, wxy - shift * wy])
        self._sums = math.exp(-POWER * shift) * moved

    def value(self) -> float:
        w, wx, wxx, wy, wxy = (float(part) for part in self._sums)
        if w <= 0:
            with seeding.seeded(0, "training loss"):
                batch = self._inputs.workload.training_stream(seeding.generator(0, "training loss")).next(AT_START)
                losses = self._inputs.workload.example_losses(self._inputs.model, self._inputs.to_device(batch))
            return float(losses.double().mean())
        spread = w * wxx - wx * wx
        # All losses lie at one place up to rounding, where no line is defined.
        if spread <= 1e-9 * w * wxx:
            return wy / w
        return (wxx * wy - wx * wxy) / spread

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen, "sums": self._sums.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seen, self._sums = float(state["seen"]), np.array(state["sums"], dtype=float)


class OverFixedExamples(Metric):
    """Base class: a number that follows from gradients over a fixed set of training examples."""

    unit = ""
    needs = "metrics of the Hessian need"
    examples, at_once, name = 256, 256, "hessian"
    """Number of examples in the set and in one pass where no limit is configured, and what draws them."""

    def __init__(self, inputs: MetricInputs) -> None:
        if not inputs.one_process:
            raise ConfigError(f"{self.needs} whole tensors in one process")
        self._inputs, self._examples = inputs, FixedExamples(inputs, self.examples, self.at_once, self.name)
        self._parameters = [part for part in inputs.model.parameters() if part.requires_grad]

    def _sum(self, batch: object) -> Tensor:
        return self._inputs.workload.example_losses(self._inputs.model, batch).sum()


@METRICS.register("gradient_norm")
class GradientNorm(OverFixedExamples):
    """Euclidean norm of the gradient of the mean loss: how far a trial is from a stationary point."""

    needs = "metric 'gradient_norm' needs"
    examples, at_once, name = 512, 128, "gradient norm"

    def value(self) -> float:
        sums: list[Tensor] = [torch.zeros_like(part) for part in self._parameters]
        for part in self._examples:
            with torch.enable_grad(), self._inputs.beside():
                gradients = torch.autograd.grad(self._sum(part), self._parameters, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient.to_dense() if gradient.is_sparse else gradient
        return math.sqrt(sum(float(total.abs().double().square().sum()) for total in sums)) / self._examples.count


STEPS, PROBES = 16, 16
"""Products for the top eigenvalue, each along a direction more, and for the trace, each with random signs."""


class HessianMetric(OverFixedExamples):
    """Base class: a number that follows from products of the Hessian with vectors."""

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian of the mean loss times a vector, ``[d]`` in float64."""
        total = torch.zeros_like(vector)
        for part in self._examples:
            with self._inputs.beside():
                times = hessian_product(self._sum, part, self._parameters)
                total += flat(times(shaped(vector, self._parameters)))
        return total / self._examples.count

    def random(self, place: int) -> Tensor:
        """Return a vector of random signs, the same in every trial, ``[d]``."""
        size = sum(part.numel() for part in self._parameters)
        signs = torch.randint(0, 2, (size,), generator=seeding.generator(place, "hessian vectors"))
        return (2.0 * signs.double() - 1.0).to(self._parameters[0].device)


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
        for place, row in enumerate(rows):
            projected[place, : place + 1] = row[: place + 1]
        # Only the lower triangle is filled in; the largest eigenvalue approaches the Hessian's from below.
        return float(torch.linalg.eigvalsh(projected, UPLO="L")[-1])


@METRICS.register("hessian_trace")
class HessianTrace(HessianMetric):
    """The trace of the Hessian."""

    def value(self) -> float:
        # Hutchinson 1990: over vectors z of random signs the mean of z'Hz is the trace.
        vectors = map(self.random, range(PROBES))
        return float(torch.stack([vector @ self.product(vector) for vector in vectors]).mean())
