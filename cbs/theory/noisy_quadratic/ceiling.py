r"""The best batch-size schedule of SGD on the noisy quadratic: no rule can do better.

At given learning rates :math:`\eta_t`, t = 1 ... T, the noise of step t enters the loss at the end as
:math:`\eta_t^2 K_t / b_t` with

.. math:: K_t = \tfrac12 \sum_i h_i p_i^2 c_i \prod_{u > t} (1 - \eta_u p_i h_i)^2

and p the preconditioner; the rest of the loss does not see the batch sizes. Under :math:`\sum b_t = E` the sum is
convex in b, and least where :math:`\eta_t^2 K_t / b_t^2` is the same at every step:

.. math:: b_t = E \frac{\eta_t \sqrt{K_t}}{A}, \qquad L = L_0 + \frac{A^2}{E}, \qquad A = \sum_t \eta_t \sqrt{K_t}

So T steps at these learning rates reach a target with :math:`A^2 / (L^* - L_0)` examples, and no fewer. Batch sizes
are any positive numbers here; whole ones are a part of them, so it stays a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbs.theory.noisy_quadratic.model import NoisyQuadratic


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    r"""The best batch sizes at given learning rates.

    Attributes:
        noiseless: loss at the end without any noise, below which no batch size leads.
        weights: :math:`\eta_t \sqrt{K_t}`, shape ``[T]``.
    """

    noiseless: float
    weights: np.ndarray

    def batch_sizes(self, examples: float) -> np.ndarray:
        """Those of the least loss with so many examples, shape ``[T]``; 0 where a step adds no noise."""
        return np.asarray(examples * self.weights / self.weights.sum())

    def loss(self, examples: float) -> float:
        """The least with so many examples."""
        return self.noiseless + float(self.weights.sum()) ** 2 / examples

    def examples(self, loss: float) -> float:
        """The fewest that lead to a loss; infinity where none do."""
        return float(self.weights.sum()) ** 2 / (loss - self.noiseless) if loss > self.noiseless else np.inf


def ceiling(model: NoisyQuadratic, lrs: np.ndarray, *, power: float = 0.0) -> Ceiling:
    """The best batch sizes of SGD at these learning rates, shape ``[T]``.

    Args:
        model: the noisy quadratic.
        lrs: of every step, at least 0.
        power: exponent of the preconditioner.

    Raises:
        ValueError: if a learning rate is negative, or there is none.
    """
    lrs = np.asarray(lrs, dtype=float)
    if lrs.ndim != 1 or not len(lrs) or not (lrs >= 0).all():
        raise ValueError("learning rates are a vector of at least one, none of them negative")
    scale = model.preconditioner(power)
    kept = (1.0 - lrs[:, None] * scale * model.curvature) ** 2
    after = np.cumprod(np.vstack([np.ones(kept.shape[1]), kept[:0:-1]]), axis=0)[::-1]
    weight = 0.5 * model.count * model.curvature
    noise = after @ (weight * scale**2 * model.noise)
    return Ceiling(
        noiseless=float(weight @ (model.start * after[0] * kept[0])), weights=np.asarray(lrs * np.sqrt(noise))
    )


def fewest_examples(
    model: NoisyQuadratic, target: float, steps: int, lrs: np.ndarray, *, power: float = 0.0
) -> tuple[float, float]:
    """Examples to the target in so many steps at the best constant learning rate of those given, and this one; infinity
    where none leads there."""
    found = [(ceiling(model, np.full(steps, lr), power=power).examples(target), float(lr)) for lr in lrs]
    return min(found)
