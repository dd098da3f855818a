r"""The noise scale weighted with the curvature, :math:`B_{noise} = tr(H\Sigma)/G^\top H G` (McCandlish et al. 2018).

Equation 2.8, the number that their theory is about, at a checkpoint of a model of yours: copy :func:`hessian_moments`
and average over fresh batches as below. ``python docs/examples/hessian_noise_scale.py`` prints it beside the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbs.compute.hessian import hessian_product
from cbs.compute.state import State
from cbs.errors import ConfigError
from cbs.noise_scale import MomentAverages, NoiseScaleMeter
from cbs.noise_scale.moments import Moments, Sizes, solve_moments
from cbs.noise_scale.passes import first_dimension


def hessian_moments(
    model: nn.Module,
    loss: Callable[[Any], Tensor],
    groups: Sequence[Any],
    curvature: Any,
    sizes: Sequence[int] | None = None,
) -> Moments:
    r"""Unbiased estimates of :math:`G^\top H G` (signal) and :math:`tr(H\Sigma)` (noise), tensor by tensor.

    The entry of a parameter tensor is its part of the sum over the rows of H, so entries add up; each may be negative,
    and so may their sums where H is indefinite. H is the Hessian of the mean loss of ``curvature``; it has to be
    independent of the groups, and then the expectation is that of the true Hessian. One call costs one gradient and one
    Hessian-vector product per group, plus one gradient with its graph, whose memory is that of a training step or two.

    Repeat it on fresh batches, average signals and noises, and divide the averages: the ratio of a single call is noisy
    and biased. The noise scale is in examples.

    Weights, gradients, buffers, modes and torch's random state stay as they are. The loss is that of the model's mode:
    with dropout on, it is a random function. Attention runs on torch's plain kernels, as the fused ones have no second
    derivative; kinks, as those of ReLU, count as straight.

    Args:
        model: whose trainable parameters the gradient is taken in.
        loss: mean loss over the examples of a batch, a scalar, computed with ``model``.
        groups: at least two independent batches.
        curvature: a batch independent of them, on which H is taken.
        sizes: examples of each group; by default the first dimension of the first tensor in it.

    Returns:
        One entry per trainable parameter tensor, in the order of ``model.parameters()``.

    Raises:
        ConfigError: if there are fewer than two groups, nothing to train, or a part without second derivative.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter; there is no gradient to measure")
    if len(groups) < 2:
        raise ConfigError(f"the Hessian-weighted noise scale compares groups of examples: pass two, not {len(groups)}")
    counts = [first_dimension((group,), {}) for group in groups] if sizes is None else list(sizes)
    if len(counts) != len(groups) or min(counts) < 1:
        raise ConfigError(f"sizes must be a positive number of examples for each of {len(groups)} groups, got {sizes}")
    total = sum(counts)
    before = State(model, random=True)
    try:
        with torch.enable_grad():
            gradients = [torch.autograd.grad(loss(group), parameters, materialize_grads=True) for group in groups]
            product = hessian_product(loss, curvature, parameters)
            products = [product(gradient) for gradient in gradients]
    finally:
        before.restore()
    shares = [count / total for count in counts]
    forms = torch.stack([_inner(g, h) for g, h in zip(gradients, products, strict=True)])
    small = torch.tensordot(torch.tensor(shares).to(forms), forms, dims=1)
    big = _inner(_mean(gradients, shares), _mean(products, shares))
    effective = Sizes(small=total / len(counts), big=total, groups=len(counts))
    signal, noise = solve_moments(small, effective.small, big, effective.big)
    return Moments(indices=tuple(range(len(parameters))), signal=signal, noise=noise, sizes=effective)


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a.double() * b.double()).sum() for a, b in zip(left, right, strict=True)])


def _mean(vectors: Sequence[Sequence[Tensor]], shares: Sequence[float]) -> list[Tensor]:
    return [
        sum(share * entry.double() for share, entry in zip(shares, entries, strict=True))
        for entries in zip(*vectors, strict=True)
    ]


def main() -> None:
    """A small regression, at the parameters it starts with."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))

    def batch(examples: int = 64) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(examples, 10)
        return inputs, inputs[:, :1] + torch.randn(examples, 1)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    weighted, meter = MomentAverages(), NoiseScaleMeter(model)
    for _ in range(64):
        with meter.paused():
            found = hessian_moments(model, loss, [batch(16) for _ in range(4)], batch())
        weighted.add(64, found.signal.numpy(), found.noise.numpy())
        loss(batch()).backward()
        meter.step()
        model.zero_grad()
    print("plain:            ", meter.estimate())
    print("Hessian-weighted: ", weighted.estimate())


if __name__ == "__main__":
    main()
