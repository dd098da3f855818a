"""Base classes of the optimizers that compute a direction from the singular vectors of the momentum.

For a parameter with gradient g they keep the average ``b <- momentum * b + (1 - momentum) g`` and use b, or with
Nesterov's look-ahead ``momentum * b + (1 - momentum) g`` of the new b. The methods differ in the direction: Muon uses
the polar factor. Polar factors do not depend on scale, so an average can replace the sum that papers use.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.compute.device import FAST_BFLOAT16
from cbs.optimizers.adam import AdamW, has_fused_kernel
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.contract import (
    CheckedOptimizer,
    check_choice,
    check_decay,
    check_size,
    evaluated,
    misfit,
    needs_dense_gradients,
    state_dtype,
)
from cbs.optimizers.layout import LAYOUTS, as_matrices
from cbs.optimizers.routing import Matrices, route
from cbs.registry.values import is_whole

# Coefficients of Jordan et al. 2024: steep at 0, and within a third of 1 elsewhere, without converging to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

METHODS = ("newton_schulz", "svd")
DTYPES = ("auto", "float32", "bfloat16")

NORM_FLOOR = 1e-7  # as in torch.optim.Muon

# Matrices of up to this many entries are iterated together, because their cost is dispatch, not arithmetic
SMALL = 2**14


def orthogonalize(
    matrices: Sequence[Tensor],
    *,
    method: str = "newton_schulz",
    steps: int = 5,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    dtype: str = "float32",
) -> list[Tensor]:
    """Return an approximate or exact polar factor of each of ``matrices``, which are not changed.

    Args:
        matrices: ``[m, n]``, or a stack of them ``[count, m, n]``, of any shapes, none empty.
        method: ``"newton_schulz"`` or ``"svd"``.
        steps: Newton-Schulz steps.
        coefficients: Newton-Schulz coefficients, see :func:`newton_schulz`.
        dtype: ``"bfloat16"`` to iterate in bfloat16, as on accelerators; ``"float32"`` to keep each matrix's own dtype,
            or float32 if that is of lower precision. See :func:`fast_dtype`.

    Returns:
        One tensor for each matrix, in the type of the computation.
    """
    working = [matrix if matrix.dtype is torch.float64 else matrix.float() for matrix in matrices]
    if method == "svd":
        return [polar_factor(matrix) for matrix in working]
    if dtype == "bfloat16":
        return [newton_schulz(matrix.bfloat16(), steps, coefficients) for matrix in working]
    factors = list(working)
    for positions in _batches(working):
        if len(positions) == 1:
            factors[positions[0]] = newton_schulz(working[positions[0]], steps, coefficients)
            continue
        stacked = torch.stack([_wide(working[position]) for position in positions])
        for position, factor in zip(positions, newton_schulz(stacked, steps, coefficients).unbind(), strict=True):
            factors[position] = factor.mT if _is_tall(working[position]) else factor
    return factors


def fast_dtype(matrices: Sequence[Tensor]) -> str:
    """Return ``"bfloat16"`` where the iteration of such matrices is faster in it than in float32, else ``"float32"``.

    It is faster on accelerators, and for large matrices on CPUs with AMX (three times, from 256 x 256 on) and on AMD
    CPUs with AVX512-BF16 (twice). On others it is slower: 1.5 times with AVX512-BF16, 5 times with AVX512, 50 times
    with AVX2. The CPU's reported features decide, not a timing, so all trials of a sweep on machines of one kind use
    the same dtype. float64 is kept.
    """
    if any(matrix.dtype is torch.float64 for matrix in matrices):
        return "float32"
    if all(matrix.device.type != "cpu" for matrix in matrices):
        return "bfloat16"
    return "bfloat16" if FAST_BFLOAT16 and max(matrix.numel() for matrix in matrices) > SMALL else "float32"


def newton_schulz(matrices: Tensor, steps: int = 5, coefficients: tuple[float, float, float] = COEFFICIENTS) -> Tensor:
    """Iterate the quintic Newton-Schulz map, ``X <- a X + b (X X^T) X + c (X X^T)^2 X``, from ``X = G / |G|_F``.

    Each step maps every singular value s to ``a s + b s^3 + c s^5`` and keeps the singular vectors, so a value that is
    0 stays 0. A matrix with Frobenius norm below 1e-7 is divided by 1e-7 instead.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the same operations in the same order as
    ``torch.optim.Muon``.

    Args:
        matrices: ``[m, n]`` or ``[batch, m, n]``.
        steps: how often the map is applied.
        coefficients: a, b and c.

    Returns:
        A tensor of the same shape and type.
    """
    a, b, c = coefficients
    tall = _is_tall(matrices)
    x = matrices.mT if tall else matrices
    multiply_add = torch.addmm if x.ndim == 2 else torch.baddbmm
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=NORM_FLOOR)
    for _ in range(steps):
        gram = x @ x.mT
        x = multiply_add(x, multiply_add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def polar_factor(matrix: Tensor) -> Tensor:
    """Return the exact polar factor of ``[m, n]`` or ``[count, m, n]``, by singular value decomposition.

    Singular values below the rounding error of the largest, ``max(m, n) eps s_max``, count as 0. A matrix with an entry
    that is not finite gives NaN.
    """
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    left, values, right = torch.linalg.svd(matrix.where(finite, 0.0), full_matrices=False)
    threshold = values[..., :1] * max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    return ((left * (values > threshold)[..., None, :]) @ right).where(finite, torch.nan)


def _batches(matrices: Sequence[Tensor]) -> list[list[int]]:
    """Return positions of matrices to iterate together: small ones of one shape up to transposition; all others
    alone.
    """
    members: dict[tuple[Any, ...], list[int]] = {}
    for position, matrix in enumerate(matrices):
        alone = position if matrix.numel() > SMALL or matrix.ndim > 2 else None
        members.setdefault((min(matrix.shape), max(matrix.shape), matrix.dtype, matrix.device, alone), []).append(
            position
        )
    return list(members.values())


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[-2] > matrix.shape[-1]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if _is_tall(matrix) else matrix


class MomentumOptimizer(CheckedOptimizer):
    """Averages gradients and leaves the step to a subclass.

    The average is kept in float32 for parameters of a lower precision and in the parameter's own type otherwise.
    Parameters without a gradient are skipped. Among the options are ``lr``, ``momentum`` in [0, 1) and, if there is
    Nesterov's look-ahead, ``nesterov``.
    """

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options; subclasses check their own options, too."""
        super().check(group)
        check_decay("momentum", group["momentum"])

    def check_parameter(self, param: Tensor) -> None:
        """Raise ``ValueError`` for a parameter that is not a matrix."""
        super().check_parameter(param)
        if param.ndim < 2:
            raise ValueError(f"{type(self).__name__} takes matrices, got a parameter of shape {tuple(param.shape)}")

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Update ``params`` in place.

        Args:
            params: parameters of one group that have a gradient.
            momenta: the averages, same shapes; must not be changed.
            group: the group's options.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient once; return the closure's result.

        Raises:
            RuntimeError: if a gradient is sparse.
        """
        loss = evaluated(closure)
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None and param.numel() > 0]
            # It is fastest to update small parameters together, and each large one alone while it is in the cache.
            small = [param for param in params if param.numel() <= SMALL]
            for members in ([small] if small else []) + [[param] for param in params if param.numel() > SMALL]:
                self.update(members, self._momenta(members, group), group)
        return loss

    def gradient(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return what is averaged for a parameter, in the type of its state: its gradient."""
        assert param.grad is not None
        return param.grad.to(state_dtype(param))

    def _momenta(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        gradients, averages = [], []
        for param in params:
            assert param.grad is not None
            if param.grad.is_sparse:
                raise needs_dense_gradients(type(self).__name__)
            state = self.state[param]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(param, dtype=state_dtype(param))
            if state["momentum_buffer"].shape != param.shape:
                raise misfit(self, "momentum_buffer", state["momentum_buffer"], param)
            averages.append(state["momentum_buffer"])
            gradients.append(self.gradient(param, group))
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        return list(torch._foreach_lerp(gradients, averages, group["momentum"])) if group.get("nesterov") else averages


class SpectralOptimizer(MomentumOptimizer):
    """Averages the gradients of matrices and orthogonalises the averages.

    A group may set its ``layout``, how its parameters are read as matrices, see :data:`cbs.optimizers.layout.Layout`;
    by default ``[out, in]``, with kernels of convolutions as ``[out, in * places]``.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        options: options of the subclass as its ``locals()``, including ``lr`` and ``momentum``; its ``**iteration``
            arguments are passed on as keywords.
        orthogonalization: ``"newton_schulz"`` or ``"svd"``, see :mod:`cbs.optimizers.spectral`.
        ns_steps: Newton-Schulz steps.
        ns_coefficients: Newton-Schulz coefficients.
        ns_dtype: ``"float32"``, ``"bfloat16"``, or ``"auto"`` for the faster of them, which the group names after the
            first step; see :func:`~cbs.optimizers.spectral.fast_dtype`.
    """

    def __init__(
        self,
        params: ParamsT,
        options: Mapping[str, Any],
        *,
        orthogonalization: str = "newton_schulz",
        ns_steps: int = 5,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        ns_dtype: str = "auto",
    ) -> None:
        given = {name: value for name, value in options.items() if name != "iteration"}
        iteration = {"orthogonalization": orthogonalization, "ns_steps": ns_steps, "ns_coefficients": ns_coefficients}
        # Not super(), which may have options of its own.
        MomentumOptimizer.__init__(self, params, {**given, **iteration, "ns_dtype": ns_dtype, "layout": "out_in"})

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        for name, known in (("orthogonalization", METHODS), ("ns_dtype", DTYPES), ("layout", LAYOUTS)):
            check_choice(name, group[name], known)
        steps, coefficients = group["ns_steps"], group["ns_coefficients"]
        # torch.optim.Muon refuses 100 as well.
        if not is_whole(steps) or steps >= 100:
            raise ValueError(f"ns_steps must be a whole number from 1 to 99, got {steps}")
        if len(coefficients) != 3 or not all(isinstance(number, int | float) for number in coefficients):
            raise ValueError(f"ns_coefficients must be three numbers, got {coefficients}")

    def polar_factors(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the polar factor of each momentum read as matrices, ``[m, n]`` or ``[experts, m, n]``.

        The group's options determine the method and precision.
        """
        if group["ns_dtype"] == "auto":
            # Stored in the group, and so in checkpoints: a run keeps the precision in which it began.
            group["ns_dtype"] = fast_dtype(group["params"])
        return orthogonalize(
            [as_matrices(momentum, group["layout"]) for momentum in momenta],
            method=group["orthogonalization"],
            steps=group["ns_steps"],
            coefficients=group["ns_coefficients"],
            dtype=group["ns_dtype"],
        )


def beside_adamw(kind: type[MomentumOptimizer], summary: str) -> Callable[..., CompositeOptimizer]:
    """Return a builder for the registry that uses ``kind`` on the matrices of a model and AdamW on the rest.

    Its options are those of ``kind``, of which ``weight_decay`` also applies to AdamW, and

    - ``matrices``: which parameters are matrices, see :func:`~cbs.optimizers.routing.route`; a model without any is
      trained by AdamW alone;
    - ``betas`` and ``eps``: AdamW's;
    - ``adam_lr_ratio``: ratio of AdamW's learning rate to that of ``kind``.

    The builder raises ``ValueError`` if an option is invalid, or the model has no trainable parameter.

    Args:
        kind: optimizer of the matrices, built as ``kind(groups, lr, **options)``.
        summary: one line of description.
    """

    def build(
        model: nn.Module,
        lr: float,
        *,
        matrices: Matrices = "hidden",
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        adam_lr_ratio: float = 1.0,
        **options: Any,
    ) -> CompositeOptimizer:
        check_size("adam_lr_ratio", adam_lr_ratio)
        routing = route(model, matrices)
        # Built even without matrices, to check the options.
        spectral = kind(routing.groups or [{"params": []}], lr, **options)  # type: ignore[arg-type]
        parts: list[torch.optim.Optimizer] = [spectral] if routing.groups else []
        if routing.rest:
            own = {"betas": betas, "eps": eps, "weight_decay": options["weight_decay"]}
            fused = has_fused_kernel(routing.rest)
            parts.append(AdamW(routing.rest, lr=lr * adam_lr_ratio, fused=fused, **own))
        return CompositeOptimizer(parts)

    build.__doc__ = summary
    return build
