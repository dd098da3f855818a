"""NorMuon (Li et al. 2025, arXiv 2510.05491), MONA (Li et al. 2026, arXiv 2605.26842), and Muon and Adam on a sphere,
every matrix keeping the norm it started with (Wen et al. 2025)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_decay, check_size, misfit, state_dtype
from cbs.optimizers.layout import as_matrices, as_parameter
from cbs.optimizers.muon import Muon, registered
from cbs.optimizers.spectral import MomentumOptimizer, SpectralOptimizer, beside_adamw
from cbs.registry.values import is_number

# Added to square roots and norms in denominators, as in the released code (zichongli5/NorMuon, normuon.py)
FLOOR = 1e-10


class NorMuon(Muon):
    """Muon with a second moment for every row (a neuron) of the polar factor O of the momentum:

        v_i <- beta2 * v_i + (1 - beta2) mean_j O_ij^2
        D_ij = O_ij / sqrt(v_i)
        W <- (1 - lr * weight_decay) W - lr * scale * D |O| / |D|

    where ``|.|`` is the Frobenius norm, so that a step is as long as Muon's. v starts at 0 without bias correction,
    because the last factor would cancel it.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        beta2: decay of the rows' average squares per step.
        momentum: like all further options as in :class:`~cbs.optimizers.muon.Muon`; the released code uses the learning
            rate convention ``"original"``.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        beta2: float = 0.95,
        momentum: float = 0.95,
        nesterov: bool = True,
        lr_convention: str = "match_rms_adamw",
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        SpectralOptimizer.__init__(self, params, locals(), **iteration)

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_decay("beta2", group["beta2"])

    def directions(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the polar factors, with rows divided by the roots of their second moments and the original norm."""
        factors = zip(params, self.polar_factors(momenta, group), strict=True)
        return [self._even(param, factor.to(state_dtype(param)), group["beta2"]) for param, factor in factors]

    def _even(self, param: Tensor, factor: Tensor, beta2: float) -> Tensor:
        squares = factor.square().mean(-1, keepdim=True)
        average = self.state[param].setdefault("row_squares", torch.zeros_like(squares))
        if average.shape != squares.shape:
            raise misfit(self, "row_squares", average, param)
        # Updated before it is read: v starts at 0, by which the first step would divide.
        direction = factor / (average.lerp_(squares, 1 - beta2).sqrt() + FLOOR)
        length, now = (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) for x in (factor, direction))
        return direction * (length / (now + FLOOR))


normuon = registered(
    "normuon", NorMuon, "Muon with rows of one size on average on hidden matrices, AdamW on the rest.",
    paper="Li et al. 2025, arXiv 2510.05491",
)  # fmt: skip


class Mona(Muon):
    """Muon that averages, in place of the gradient g of a step k, the accelerated one

        a_k = beta_a a_(k-1) + (1 - beta_a) (g_k - g_(k-1)),  a_1 = 0
        g_k + alpha a_k

    The differences add up: ``a_k = (1 - beta_a) (g_k - e_(k-1))`` with the average
    ``e_k = beta_a e_(k-1) + (1 - beta_a) g_k`` that starts at ``e_0 = g_1``, which is all that is kept. With the
    default alpha the accelerated gradient is the mean of the gradient and this average.

    Formulas and defaults are those in which independent ports of the paper agree (palingenesis, ``optim.py``, and
    others); its own algorithm could not be read. Ports differ in the first step, which has no difference: here none is
    added.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        acceleration_decay: beta_a, decay of the average of differences per step.
        acceleration: alpha; ``None`` for ``-1 / (2 (1 - beta_a))``.
        momentum: like all further options as in :class:`~cbs.optimizers.muon.Muon`.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        acceleration_decay: float = 0.99,
        acceleration: float | None = None,
        momentum: float = 0.95,
        nesterov: bool = True,
        lr_convention: str = "match_rms_adamw",
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        SpectralOptimizer.__init__(self, params, locals(), **iteration)

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_decay("acceleration_decay", group["acceleration_decay"])
        if group["acceleration"] is not None and not is_number(group["acceleration"]):
            raise ValueError(f"acceleration must be None or a number, got {group['acceleration']!r}")

    def gradient(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the accelerated gradient, and update the average."""
        gradient, rest = super().gradient(param, group), 1.0 - group["acceleration_decay"]
        # Starts at the first gradient, so that the first step has no difference.
        average = self.state[param].setdefault("average_gradient", gradient.clone())
        if average.shape != param.shape:
            raise misfit(self, "average_gradient", average, param)
        share = -0.5 if group["acceleration"] is None else group["acceleration"] * rest
        accelerated = gradient + share * (gradient - average)
        average.lerp_(gradient, rest)
        return accelerated


mona = registered(
    "mona", Mona, "Muon on gradients moved towards their average, AdamW on the rest.",
    paper="Li et al. 2026, arXiv 2605.26842",
)  # fmt: skip


def step_on_sphere(owner: torch.optim.Optimizer, param: Tensor, direction: Tensor, group: Mapping[str, Any]) -> None:
    """Move a matrix W to ``R N(W - lr * R * N(D))`` with ``N(X) = X / |X|`` and the Frobenius norm.

    R = |W| before the first step is kept in the optimizer's state.

    Args:
        owner: optimizer of the parameter.
        param: the parameter.
        direction: D, as matrices ``[m, n]`` or ``[experts, m, n]``; where it is 0, W stays.
        group: options of the parameter, ``lr`` and ``layout``.

    Raises:
        ValueError: if a matrix is 0 at its first step.
    """
    matrix = as_matrices(param, group["layout"]).to(direction.dtype)
    state = owner.state[param]
    if "radius" not in state:
        state["radius"] = _norm(matrix)
        if not bool((state["radius"] > 0).all()):
            raise ValueError(
                f"{type(owner).__name__} keeps the norm of a matrix, but one of shape {tuple(param.shape)} starts "
                'at 0; initialize it otherwise, or train it with AdamW: matrices=["!NAME"]'
            )
    radius: Tensor = state["radius"]
    if radius.shape != (*matrix.shape[:-2], 1, 1):
        raise misfit(owner, "radius", radius, param)
    length = _norm(direction)
    moved = matrix - float(group["lr"]) * radius * torch.where(length > 0, direction / length, direction)
    param.copy_(as_parameter(moved * (radius / _norm(moved)), param.shape, group["layout"]))


def _norm(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)


class MuonHyperball(SpectralOptimizer):
    """Muon on a sphere: steps relative to the norm of a matrix, which never changes.

    With O the polar factor of the momentum of W, ``|.|`` the Frobenius norm and R = |W| before the first step,

        W <- R N(W - lr * R * N(O)),  N(X) = X / |X|,

    so ``lr`` is the length of a step relative to the norm of the weights, at every width.

    Args:
        params: matrices, none of them 0, or groups of them as torch.optim takes them.
        lr: length of a step relative to the norm of the weights.
        momentum: decay of the average gradient per step.
        nesterov: whether to use Nesterov's look-ahead.
        weight_decay: weight decay of the parameters that AdamW trains; the norm of matrices is fixed instead.
        iteration: options of :class:`~cbs.optimizers.spectral.SpectralOptimizer`.

    Raises:
        ValueError: if a value is invalid, a parameter is not a matrix, or, at the first step, is 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        super().__init__(params, locals(), **iteration)

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` on their spheres."""
        for param, momentum, factor in zip(params, momenta, self.polar_factors(momenta, group), strict=True):
            step_on_sphere(self, param, factor.to(momentum.dtype), group)


muonh = optimizer(
    "muonh",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={MuonHyperball: "nuclear"},
    width_rule="none",
    paper="Wen et al. 2025, Hyperball Optimization, whenwen.github.io/wd_blog",
    options_of=MuonHyperball,
)(beside_adamw(MuonHyperball, "Muon on the sphere of each hidden matrix's first norm, AdamW on the rest."))


class AdamHyperball(MomentumOptimizer):
    """Adam on a sphere: steps relative to the norm of a matrix, which never changes.

    With the averages m of the gradients and v of their squares, the direction is D = m / (sqrt(v) + denominator_eps),
    and the step :func:`step_on_sphere`. It does not depend on the scale of D, so bias
    correction would have no effect (up to ``denominator_eps``).

    Args:
        params: matrices, none of them 0, or groups of them as torch.optim takes them.
        lr: length of a step relative to the norm of the weights.
        momentum: decay of the average gradient per step.
        beta2: decay of the average square per step.
        denominator_eps: added to the square root.
        weight_decay: weight decay of the parameters that AdamW trains; the norm of matrices is fixed instead.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix or, at the first step, is 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        *,
        momentum: float = 0.9,
        beta2: float = 0.95,
        denominator_eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "beta2": beta2, "denominator_eps": denominator_eps}
        super().__init__(params, {**options, "weight_decay": weight_decay, "layout": "out_in"})

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_decay("beta2", group["beta2"])
        check_size("denominator_eps", group["denominator_eps"])

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` on their spheres."""
        for param, momentum in zip(params, momenta, strict=True):
            assert param.grad is not None
            squares = self.state[param].setdefault("squares", torch.zeros_like(momentum))
            if squares.shape != param.shape:
                raise misfit(self, "squares", squares, param)
            squares.lerp_(param.grad.to(momentum.dtype).square(), 1 - group["beta2"])
            direction = momentum / (squares.sqrt() + group["denominator_eps"])
            step_on_sphere(self, param, as_matrices(direction, group["layout"]), group)


adamh = optimizer(
    "adamh",
    lr_grid=(4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128),
    family="adam",
    geometry={AdamHyperball: "l1"},
    width_rule="none",
    paper="Wen et al. 2025, Hyperball Optimization, whenwen.github.io/wd_blog",
    options_of=AdamHyperball,
)(beside_adamw(AdamHyperball, "Adam on the sphere of each hidden matrix's first norm, AdamW on the rest."))
