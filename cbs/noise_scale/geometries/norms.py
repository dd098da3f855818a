r"""The norms in which steepest descent is what an optimizer does: Euclidean, of sign methods, of spectral methods.

:math:`B_{simple} = tr(\Sigma)/|G|^2` (McCandlish et al. 2018, equation 2.9); :math:`B_{\ell_1} =
(\|\sigma\|_1/\|G\|_1)^2` and :math:`B_{S_1} = (tr\,C^{1/2}/\|G\|_{S_1})^2` (Naganuma et al., arXiv 2602.03001).
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES, Geometry
from cbs.noise_scale.moments import Sizes, solve_moments
from cbs.optimizers.layout import Layout, as_matrices
from cbs.optimizers.matching import geometry_of, leaves


@GEOMETRIES.register("l2")
class L2(Geometry):
    r"""The simple noise scale, which belongs to plain SGD and SGD with momentum.

    Signal and noise are the two-batch solution of :math:`T(g) = |g|^2`. They are unbiased estimates of :math:`|G|^2`
    and :math:`tr(\Sigma)` in every parameter tensor, for any group sizes and any distribution; either may be negative.
    At a batch of :math:`B_{simple}` examples the noise of a gradient is as large as the gradient (equation 2.10).
    """

    name = "l2"
    symbol = r"B_{\mathrm{simple}}"
    exponent = 1
    norms_suffice = True

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        dtype = torch.promote_types(gradients.dtype, torch.float32)
        return torch.linalg.vector_norm(gradients, dtype=dtype).square()


@GEOMETRIES.register("l1")
class L1(Geometry):
    r"""The noise scale of signSGD, Signum, Lion and, because they are close to sign methods, the Adam family.

    Noise is :math:`\|\sigma\|_1`, with :math:`\sigma_i` the standard deviation of coordinate i of a single example's
    gradient, signal the norm :math:`\|g\|_1` of the step's gradient; both add up over parameter tensors before they are
    squared. The paper's estimator :math:`\sigma_i^2 = B/(R-1)\,(\overline{(g^j_i)^2} - g_i^2)` for R groups is the
    elementwise two-batch solution. Bias of the two sides:

    - Noise is unbiased for groups whose mean gradients are Gaussian, which holds unless groups are tiny: the square
      root of an unbiased variance is too small by the factor :func:`root_shrinkage`, which is divided out (the paper
      does not). A negative variance, which only rounding can cause, counts as zero.
    - Signal is biased upward: as in the paper it is the norm of a noisy gradient, whose entries have the mean of a
      folded normal, :math:`E|g_i| = s\sqrt{2/\pi}\,e^{-G_i^2/2s^2} + |G_i|\,\mathrm{erf}(|G_i|/s\sqrt2)` with
      :math:`s = \sigma_i/\sqrt B`. So the noise scale is biased downward, and **never above** :math:`\pi B/2`, until B
      is well above it; :func:`cbs.noise_scale.interval.correction` corrects part of this bias.
    """

    name = "l1"
    symbol = r"B_{\ell_1}"
    exponent = 2
    norms_suffice = False

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        squares = gradients.to(torch.promote_types(gradients.dtype, torch.float32)).square()
        return squares[0] if len(squares) == 1 else squares.sum(0)

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        signals = [at_big.sqrt().sum(dtype=torch.float64) for at_big in big]
        sides = zip(small, big, strict=True)
        variances = [solve_moments(one, sizes.small, other, sizes.big)[1] for one, other in sides]
        noises = [variance.clamp_min(0.0).sqrt().sum(dtype=torch.float64) for variance in variances]
        return torch.stack(signals), torch.stack(noises) / root_shrinkage(sizes.groups)


def root_shrinkage(groups: int) -> float:
    r"""Return the mean of a Gaussian sample's standard deviation over the true one; NaN for a single group.

    :math:`c_4(R) = \sqrt{2/(R-1)}\,\Gamma(R/2)/\Gamma((R-1)/2)`, from 0.798 for two groups up to 1.
    """
    if groups < 2:
        return math.nan
    return math.sqrt(2.0 / (groups - 1)) * math.exp(math.lgamma(groups / 2) - math.lgamma((groups - 1) / 2))


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
    - Signal is biased upward, as with :class:`L1` and more so: noise has full rank, the true gradient nearly low rank.
      :func:`cbs.noise_scale.interval.correction` corrects part of this bias.

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
