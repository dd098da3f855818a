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
    """Moves towards the point of a norm ball that lies furthest against the momentum d, ``lmo(d)``.

    Unconstrained, ``w <- w + lr * lmo(d)``; constrained, ``w <- (1 - lr) w + lr * lmo(d)``, which keeps a weight that
    starts in the ball there for learning rates up to 1.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate: the share of the way to the surface.
        radius: of the ball, above 0.
        constrained: whether weights shrink by ``1 - lr`` at every step.
        momentum: decay of the average gradient per step, one minus the authors' ``momentum``.

    Raises:
        ValueError: if a value is outside its domain.
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
        """Refuse options outside their domain with a ``ValueError``."""
        super().check(group)
        if not 0.0 < group["radius"] < math.inf:
            raise ValueError(f"a radius must be finite and above 0, got {group['radius']}")

    @torch.no_grad()
    def init(self) -> None:
        """Put weights at random points of the surface, as the authors' ``init()``; torch's global generator draws."""
        for group in self.param_groups:
            for param in group["params"]:
                param.copy_(self.start(param, group) * group["radius"])

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` towards, or by, the points of their balls."""
        lr = float(group["lr"])
        if group["constrained"]:
            torch._foreach_mul_(params, 1 - lr)
        for param, point in zip(params, self.furthest(momenta, group), strict=True):
            param.add_(point, alpha=-lr * group["radius"])

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The point of the unit ball furthest along each momentum, ``-lmo(d)`` of radius 1."""
        raise NotImplementedError

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """A random point of the surface of the unit ball, shape of ``param``."""
        raise NotImplementedError


class SpectralBall(SpectralOptimizer, NormBallOptimizer):
    """Scion in the spectral norm from root mean square to root mean square, whose ball has singular values up to
    ``radius * sqrt(d_out / d_in)``: ``lmo(d) = -radius sqrt(d_out / d_in) U V^T`` for matrices ``[d_out, d_in]``.

    The kernel of a convolution is a matrix ``[d_out, d_in * k]`` with ``lmo(d) = -radius sqrt(d_out / d_in) / k U V^T``
    where k is the number of its places; it starts with a semi-orthogonal matrix at every place.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate; this and the next three as in :class:`NormBallOptimizer`.
        radius: of the ball.
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
        """The scaled polar factors."""
        layout, factors = group["layout"], self.polar_factors(momenta, group)
        return [
            as_parameter(factor * self._size(momentum, group), momentum.shape, layout)
            for momentum, factor in zip(momenta, factors, strict=True)
        ]

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Semi-orthogonal matrices, scaled."""
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
    """Scion in the largest entry, for embeddings and output layers: ``lmo(d) = -(radius / d_in) sign(d)`` where d_in is
    the last dimension.
    """

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The scaled signs; NaN where a momentum is not finite."""
        # Else what is no number has the sign 0, and infinity that of any other for good.
        signs = [momentum.sign().where(momentum.isfinite(), torch.nan) for momentum in momenta]
        return [sign / sign.shape[-1] for sign in signs]

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Random signs, scaled."""
        return (torch.randint_like(param, 2) * 2 - 1) / param.shape[-1]


class RootMeanSquareBall(NormBallOptimizer):
    """Scion in the root mean square of the entries, for everything else: ``lmo(d) = -radius d / rms(d)``."""

    def furthest(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The momenta with root mean square 1; 0 where a momentum is 0."""
        sizes = [momentum.square().mean().sqrt() for momentum in momenta]
        return [momentum / size.where(size != 0, 1.0) for momentum, size in zip(momenta, sizes, strict=True)]

    def start(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Where it is: gains begin at 1, biases at 0, inside the ball."""
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
        lr: learning rate, the share of the way to the ball's surface.
        radius: of the spectral and the root-mean-square ball.
        sign_radius: of the other one.
        init: whether the weights start on the surface of their balls and biases at 0, as the authors have it.
        matrices: see :func:`~cbs.optimizers.routing.route`.
        options: others of :class:`SpectralBall`.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    routing = route(model, matrices)
    rest = [entry for entry in routing.routes if not entry.is_matrix]
    signs = [entry.parameter for entry in rest if entry.kind != "not a matrix" and entry.parameter.ndim == 2]
    others = [entry.parameter for entry in rest if not any(entry.parameter is param for param in signs)]
    common = {name: options[name] for name in ("constrained", "momentum")}
    # Over nothing they still check the options.
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
