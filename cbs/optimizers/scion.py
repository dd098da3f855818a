"""Scion: steps that end on the surface of a norm ball, one norm per kind of parameter (Pethick et al., 2502.07529)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cbs.optimizers.base import optimizer
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.routing import Matrices, route
from cbs.optimizers.spectral.base import MomentumOptimizer, SpectralOptimizer
from cbs.optimizers.spectral.orthogonalization import COEFFICIENTS


class NormBallOptimizer(MomentumOptimizer):
    """Moves towards the point of a norm ball that lies furthest against the momentum d, ``lmo(d)``.

    Unconstrained, ``w <- w + lr * lmo(d)``; constrained, ``w <- (1 - lr) w + lr * lmo(d)``, which keeps a weight that
    starts in the ball there for learning rates up to 1.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate: the share of the way to the surface.
        options: ``radius`` above 0, ``constrained``, and the options of
            :class:`~cbs.optimizers.spectral.base.MomentumOptimizer`.

    Raises:
        ValueError: if a value is outside its domain.
    """

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse options outside their domain with a ``ValueError``."""
        super().check(group)
        if not 0.0 < group["radius"] < math.inf:
            raise ValueError(f"a radius must be finite and above 0, got {group['radius']}")

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` towards, or by, the points of their balls."""
        if group["constrained"]:
            torch._foreach_mul_(params, 1 - group["lr"])
        for param, point in zip(params, self.furthest(momenta, group), strict=True):
            param.add_(point, alpha=-group["lr"] * group["radius"])

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The point of the unit ball furthest along each momentum, ``-lmo(d)`` of radius 1."""
        raise NotImplementedError


class SpectralBall(NormBallOptimizer, SpectralOptimizer):
    """Scion in the spectral norm from root mean square to root mean square, whose ball has singular values up to
    ``radius * sqrt(d_out / d_in)``: ``lmo(d) = -radius sqrt(d_out / d_in) U V^T`` for matrices ``[d_out, d_in]``.
    """

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The scaled polar factors."""
        factors = self.polar_factors(momenta, group)
        return [factor * math.sqrt(factor.shape[0] / factor.shape[1]) for factor in factors]


class SignBall(NormBallOptimizer):
    """Scion in the largest entry, for embeddings and output layers: ``lmo(d) = -(radius / d_in) sign(d)`` where d_in is
    the last dimension.
    """

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The scaled signs."""
        return [momentum.sign() / momentum.shape[-1] for momentum in momenta]


class RootMeanSquareBall(NormBallOptimizer):
    """Scion in the root mean square of the entries, for everything else: ``lmo(d) = -radius d / rms(d)``."""

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The momenta with root mean square 1; 0 where a momentum is 0."""
        sizes = [momentum.square().mean().sqrt() for momentum in momenta]
        return [momentum / size.where(size != 0, 1.0) for momentum, size in zip(momenta, sizes, strict=True)]


@optimizer(
    "scion",
    lr_grid=(2**-14, 2**-13, 2**-12, 2**-11, 2**-10),
    family="spectral",
    geometry={SpectralBall: "nuclear", SignBall: "l1", RootMeanSquareBall: "l2"},
    width_rule="none",
    paper="Pethick et al. 2025, arXiv 2502.07529",
)
def scion(
    model: nn.Module,
    lr: float,
    *,
    constrained: bool = True,
    radius: float = 50.0,
    sign_radius: float = 3000.0,
    momentum: float = 0.9,
    orthogonalization: str = "newton_schulz",
    ns_steps: int = 5,
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    ns_dtype: str = "auto",
    matrices: Matrices = "hidden",
) -> torch.optim.Optimizer:
    """Steps within norm balls: spectral for hidden matrices, the largest entry for embeddings and the output layer.

    Every parameter has a ball and there is no second method: :class:`SpectralBall` of ``radius`` for the matrices that
    :func:`~cbs.optimizers.routing.route` names, :class:`SignBall` of ``sign_radius`` for all others, and
    :class:`RootMeanSquareBall` of ``radius`` for what has one dimension or more than two: gains, biases and kernels.
    The radii are those of the authors for a GPT with a tied head.

    Args:
        model: the model.
        lr: learning rate, the share of the way to the ball's surface.
        constrained: whether weights shrink by ``1 - lr`` at every step, which keeps them in the ball.
        radius: of the spectral and the root-mean-square ball.
        sign_radius: of the other one.
        momentum: decay of the average gradient per step, one minus the authors' ``momentum``.
        orthogonalization: ``"newton_schulz"`` or ``"svd"``.
        ns_steps: Newton-Schulz steps.
        ns_coefficients: Newton-Schulz coefficients.
        ns_dtype: ``"auto"``, ``"float32"`` or ``"bfloat16"``, see
            :func:`~cbs.optimizers.spectral.orthogonalization.orthogonalize`.
        matrices: see :func:`~cbs.optimizers.routing.route`.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    common = {"constrained": constrained, "momentum": momentum, "nesterov": False}
    spectral = {
        **common,
        "radius": radius,
        "orthogonalization": orthogonalization,
        "ns_steps": ns_steps,
        "ns_coefficients": ns_coefficients,
        "ns_dtype": ns_dtype,
    }
    sign = {**common, "radius": sign_radius}
    SpectralBall.check({"lr": lr, **spectral})
    SignBall.check({"lr": lr, **sign})
    routing = route(model, matrices)
    flat = [param for param in routing.rest if param.ndim == 2]
    others = [param for param in routing.rest if param.ndim != 2]
    parts: list[torch.optim.Optimizer] = []
    if routing.matrices:
        parts.append(SpectralBall(routing.matrices, lr, **spectral))
    if flat:
        parts.append(SignBall(flat, lr, **sign))
    if others:
        parts.append(RootMeanSquareBall(others, lr, **{**common, "radius": radius}))
    return CompositeOptimizer(parts)
