"""Scion: steps that end on the surface of a norm ball, one norm per kind of parameter (Pethick et al., 2502.07529)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.layout import as_parameter, fans
from cbs.optimizers.routing import Matrices, route
from cbs.optimizers.spectral.base import MomentumOptimizer, SpectralOptimizer


class NormBallOptimizer(MomentumOptimizer):
    """Moves towards ``lmo(d)``, the point of a norm ball that is furthest in the direction opposite to the momentum d.

    Unconstrained, ``w <- w + lr * lmo(d)``; constrained, ``w <- (1 - lr) w + lr * lmo(d)``, which keeps a weight that
    starts in the ball inside it for learning rates up to 1.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate: the fraction of the way to the surface.
        radius: radius of the ball, above 0.
        constrained: whether weights shrink by the factor ``1 - lr`` at every step.
        momentum: decay of the average gradient per step, one minus the authors' ``momentum``.

    Raises:
        ValueError: if a value is invalid.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        radius: float = 1.0,
        constrained: bool = True,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(params, locals())

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        if not 0.0 < group["radius"] < math.inf:
            raise ValueError(f"a radius must be finite and above 0, got {group['radius']}")

    @torch.no_grad()
    def init(self) -> None:
        """Set weights to random points of the surface, like the authors' ``init()``, using torch's global generator."""
        for group in self.param_groups:
            for param in group["params"]:
                param.copy_(self.start(param, group) * group["radius"])

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` towards the points of their balls, or by them if unconstrained."""
        lr = float(group["lr"])
        if group["constrained"]:
            torch._foreach_mul_(params, 1 - lr)
        for param, point in zip(params, self.furthest(momenta, group), strict=True):
            param.add_(point, alpha=-lr * group["radius"])

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the point of the unit ball furthest along each momentum, ``-lmo(d)`` for radius 1."""
        raise NotImplementedError

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return a random point of the surface of the unit ball, in the shape of ``param``."""
        raise NotImplementedError


class SpectralBall(SpectralOptimizer, NormBallOptimizer):
    """Scion in the operator norm between root-mean-square norms: ``lmo(d) = -radius sqrt(d_out / d_in) U V^T``.

    The matrices are ``[d_out, d_in]``, and those in the ball have singular values up to
    ``radius * sqrt(d_out / d_in)``. The kernel of a convolution is a matrix ``[d_out, d_in * k]``, where k is the
    number of its spatial locations, with ``lmo(d) = -radius sqrt(d_out / d_in) / k U V^T``; it is initialized with a
    semi-orthogonal matrix at every location.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate; this and the next three as in :class:`NormBallOptimizer`.
        radius: radius of the ball.
        constrained: whether weights shrink.
        momentum: decay of the average gradient.
        iteration: options of :class:`~cbs.optimizers.spectral.base.SpectralOptimizer`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        radius: float = 1.0,
        constrained: bool = True,
        momentum: float = 0.9,
        **iteration: Any,
    ) -> None:
        super().__init__(params, locals(), **iteration)

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the scaled polar factors."""
        layout, factors = group["layout"], self.polar_factors(momenta, group)
        return [
            as_parameter(factor * self._size(momentum, group), momentum.shape, layout)
            for momentum, factor in zip(momenta, factors, strict=True)
        ]

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return scaled semi-orthogonal matrices."""
        d_out, columns = fans(param.shape, group["layout"])
        places = self._places(param, group)
        stack = torch.empty(param.numel() // (d_out * columns) * places, d_out, columns // places, dtype=torch.float64)
        for matrix in stack:
            nn.init.orthogonal_(matrix)
        matrices = stack if param.ndim == 3 and places == 1 else stack.permute(1, 2, 0).reshape(d_out, columns)
        return as_parameter(matrices * self._size(param, group), param.shape, group["layout"])

    def _places(self, tensor: Tensor, group: dict[str, Any]) -> int:
        return 1 if group["layout"].startswith("experts") else math.prod(tensor.shape[2:])

    def _size(self, tensor: Tensor, group: dict[str, Any]) -> float:
        d_out, columns = fans(tensor.shape, group["layout"])
        places = self._places(tensor, group)
        return math.sqrt(d_out / (columns / places)) / places


class SignBall(NormBallOptimizer):
    """Scion in the max norm, for embeddings and output layers: ``lmo(d) = -(radius / d_in) sign(d)``.

    d_in is the last dimension.
    """

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the scaled signs; NaN where a momentum is not finite."""
        # Otherwise NaN would have sign 0, and infinity an ordinary sign from then on.
        signs = [momentum.sign().where(momentum.isfinite(), torch.nan) for momentum in momenta]
        return [sign / sign.shape[-1] for sign in signs]

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return scaled random signs."""
        return (torch.randint_like(param, 2) * 2 - 1) / param.shape[-1]


class RootMeanSquareBall(NormBallOptimizer):
    """Scion in the root-mean-square norm, for all other parameters: ``lmo(d) = -radius d / rms(d)``."""

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the momenta scaled to root mean square 1; 0 where a momentum is 0."""
        sizes = [momentum.square().mean().sqrt() for momentum in momenta]
        return [momentum / size.where(size != 0, 1.0) for momentum, size in zip(momenta, sizes, strict=True)]

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the parameter as it is: gains start at 1, biases at 0, inside the ball."""
        return param / group["radius"]


@optimizer(
    "scion",
    lr_grid=(2**-14, 2**-13, 2**-12, 2**-11, 2**-10),
    family="spectral",
    geometry={SpectralBall: "nuclear", SignBall: "l1", RootMeanSquareBall: "l2"},
    width_rule="none",
    paper="Pethick et al. 2025, arXiv 2502.07529",
    options_of=SpectralBall,
)
def scion(
    model: nn.Module,
    lr: float,
    *,
    radius: float = 50.0,
    sign_radius: float = 3000.0,
    init: bool = False,
    matrices: Matrices = "kernels",
    **options: Any,
) -> CompositeOptimizer:
    """Steps within norm balls: spectral for hidden matrices, the largest entry for embeddings and the output layer.

    Every parameter has a ball and there is no second method: :class:`SpectralBall` of ``radius`` for the matrices and
    kernels that :func:`~cbs.optimizers.routing.route` names, :class:`SignBall` of ``sign_radius`` for other matrices,
    and :class:`RootMeanSquareBall` of ``radius`` for everything else, such as gains and biases. The radii are those of
    the authors for a GPT with a tied head.

    Args:
        model: the model.
        lr: learning rate, the fraction of the way to the ball's surface.
        radius: radius of the spectral and the root-mean-square ball.
        sign_radius: radius of the max-norm ball.
        init: whether weights start on the surface of their balls and biases at 0, as in the authors' code.
        matrices: see :func:`~cbs.optimizers.routing.route`.
        options: further options of :class:`SpectralBall`.

    Raises:
        ValueError: if an option is invalid, or the model has no trainable parameter.
    """
    routing = route(model, matrices)
    rest = [entry for entry in routing.routes if not entry.is_matrix]
    signs = [entry.parameter for entry in rest if entry.kind != "not a matrix" and entry.parameter.ndim == 2]
    others = [entry.parameter for entry in rest if not any(entry.parameter is param for param in signs)]
    common = {name: options[name] for name in ("constrained", "momentum")}
    # Built even without parameters, to check the options.
    parts = [
        SpectralBall(routing.groups or [{"params": []}], lr, radius=radius, **options),
        SignBall([{"params": signs}], lr, radius=sign_radius, **common),
        RootMeanSquareBall([{"params": others}], lr, radius=radius, **common),
    ]
    if init:
        for part in parts:
            part.init()
        for name, param in model.named_parameters():
            if param.requires_grad and name.rpartition(".")[2] == "bias":
                nn.init.zeros_(param)
    return CompositeOptimizer([part for part in parts if part.param_groups[0]["params"]])
