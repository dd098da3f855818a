r"""The geometry of spectral methods: :math:`B_{S_1} = (tr\,C^{1/2}/\|G\|_{S_1})^2` (Naganuma et al., 2602.03001)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.moments import Sizes, solve_moments
from cbs.optimizers.layout import Layout, as_matrices
from cbs.optimizers.matching import geometry_of, leaves


@GEOMETRIES.register("nuclear")
class Nuclear:
    r"""The noise scale of Muon and spectral descent, measured on matrices only.

    With :math:`C = E[\delta G\,\delta G^\top]` the row covariance of a single example's gradient, on the smaller side
    of the matrix, noise is :math:`tr\,C^{1/2}` and signal the sum :math:`\|g\|_{S_1}` of the singular values of the
    step's gradient; both add up over matrices before they are squared. C is the two-batch solution of
    :math:`T(g) = g g^\top`, the paper's :math:`B/(R-1)\,(\overline{g^j g^{j\top}} - g g^\top)` for R equal groups.

    Measured are the matrices that the spectral part of the optimizer updates, in the layout that their parameter group
    names: kernels with more dimensions are matrices ``[out, rest]``, and each expert of a stack is a matrix. Without
    such a part all two-dimensional tensors are measured. Complex tensors never are. Neither side is unbiased:

    - Noise is biased downward, because the square root of a covariance estimated from few samples is. For Gaussian
      noise with the same variance in all entries of ``[m, n]`` matrices, :math:`m \le n`, the noise is the true one
      times the mean square root of a Marchenko-Pastur variable at :math:`m/(n(R-1))`: 0.85 for square matrices and two
      groups, about :math:`1 - m/8n(R-1)` otherwise. Negative eigenvalues, which only rounding can cause, count as zero.
    - Signal is biased upward, as with :class:`~cbs.noise_scale.geometries.l1.L1` and more so: noise has full rank, the
      true gradient nearly low rank. :func:`cbs.noise_scale.interval.correction` corrects part of this bias.

    So the noise scale is biased downward, less so with more groups and larger batches. Computed in float64.
    """

    name = "nuclear"
    symbol = r"B_{S_1}"
    exponent = 2
    norms_suffice = False

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        spectral = {id(parameter): layout for parameter, layout in _spectral(optimizer)}
        self._covered: dict[int, Layout] = {
            index: spectral.get(id(parameter), "out_in")
            for index, parameter in enumerate(parameters)
            if (parameter.ndim >= 2 and id(parameter) in spectral if spectral else parameter.ndim == 2)
            and not parameter.is_complex()
        }
        if not self._covered:
            raise ConfigError(
                f"geometry 'nuclear' measures matrices, and none of the {len(parameters)} parameter tensors is one; "
                "use 'l2' or 'l1'"
            )

    def covers(self, index: int) -> bool:
        return index in self._covered

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        layout = self._covered[index]
        matrices = torch.stack([as_matrices(gradient, layout).double() for gradient in gradients])
        if matrices.shape[-2] > matrices.shape[-1]:
            matrices = matrices.mT
        return torch.einsum("g...ij,g...kj->...ik", matrices, matrices)

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        covariances = [
            solve_moments(at_small, sizes.small, at_big, sizes.big)[1]
            for at_small, at_big in zip(small, big, strict=True)
        ]
        # Stack signal and noise of a matrix, so that one call decomposes both.
        traces = [_root_traces(torch.stack(pair)).reshape(2, -1).sum(1) for pair in zip(big, covariances, strict=True)]
        signal, noise = torch.stack(traces, dim=1)
        return signal, noise


def _root_traces(matrices: Tensor) -> Tensor:
    """Return the traces of the square roots of symmetric matrices; NaN where a solver would refuse one not finite."""
    finite = matrices.isfinite().all(-1).all(-1)
    eigenvalues = torch.linalg.eigvalsh(matrices.where(finite[..., None, None], 0.0))
    return eigenvalues.clamp_min(0.0).sqrt().sum(-1).where(finite, torch.nan)


def _spectral(optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[Tensor, Layout]]:
    for part in leaves(optimizer) if optimizer is not None else []:
        if geometry_of(type(part)) == "nuclear":
            for group in part.param_groups:
                for parameter in group["params"]:
                    # Muon variants that also run Adam mark, in the group or in the state, which tensors Muon updates.
                    if group.get("use_muon", part.state.get(parameter, {}).get("use_muon", True)):
                        yield parameter, group.get("layout", "out_in")
