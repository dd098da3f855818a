r"""The effect of the optimizer's step on every matrix: norms of weight, gradient and update, and trust ratios.

MERIT (ICML 2025, arXiv 2508.20577) shows how many entries its clip affects, LAMB (arXiv 1904.00962) the ratio
:math:`\phi(|w|)/|d|` that scales a tensor's direction. The update is the difference of the weights after and before the
step, so it has the same meaning for every optimizer and includes weight decay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cbs.diagnostics import DIAGNOSTICS
from cbs.errors import ConfigError

# Share of the learning rate above which an entry counts as having moved by all of it, to allow for rounding
HELD = 0.999


@runtime_checkable
class HasTrustRatios(Protocol):
    """An optimizer that scales its update direction by a ratio per tensor."""

    def trust_ratios(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield every parameter that has a trust ratio, with two ratios of the latest step, both of shape ``[]``.

        The first is the ratio of the whole tensor, the second the largest of those of its rows, columns and the whole.
        """


@DIAGNOSTICS.register("optimizer_step")
class OptimizerStep:
    """Norms, clipped share and trust ratios of the optimizer's step, for every matrix.

    Columns for every parameter of two dimensions or more, followed by its name:

    - ``weight_norm.NAME``, ``gradient_norm.NAME``: Euclidean norms before the step; the gradient is already clipped;
    - ``update_norm.NAME``: Euclidean norm of the change of the weight;
    - ``clipped_share.NAME``: share of the entries that moved by the learning rate or more, which are those that MERIT
      clips; sign methods move all entries by the learning rate, others may move entries by more;
    - ``trust_ratio.NAME``, ``largest_trust_ratio.NAME``, for optimizers that have them (LAMB, LARS, MERIT): trust ratio
      of the whole tensor, and the largest of those of its rows, columns and the whole.

    Keeps a copy of the weights during the step. Sharded models are refused.
    """

    compiled = True

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}
        self._params: dict[str, nn.Parameter] = {}
        self._lrs: dict[int, Any] = {}
        self._columns: dict[str, Tensor] = {}
        self._optimizer: torch.optim.Optimizer | None = None

    def __enter__(self) -> OptimizerStep:
        """Do nothing: forward passes are not observed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: forward passes are not observed."""

    @torch.no_grad()
    def before_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Sequence[str]:
        """Record weights and gradients; return the names of the columns.

        Raises:
            ConfigError: if the model is sharded, or has no parameter of two dimensions or more with a gradient.
        """
        matrices = {name: p for name, p in model.named_parameters() if p.ndim > 1 and p.grad is not None}
        if not matrices:
            raise ConfigError("optimizer_step found no parameter of two dimensions or more that has a gradient")
        if any(hasattr(param, "placements") for param in matrices.values()):
            raise ConfigError("optimizer_step cannot see whole tensors of a sharded model; use --set shard=false")
        self._params, self._optimizer = matrices, optimizer
        self._before = {name: param.detach().clone() for name, param in matrices.items()}
        self._lrs = {id(param): group["lr"] for group in optimizer.param_groups for param in group["params"]}
        self._columns = {f"weight_norm.{name}": _norm(before) for name, before in self._before.items()}
        for name, param in matrices.items():
            assert param.grad is not None
            self._columns[f"gradient_norm.{name}"] = _norm(param.grad)
        kinds = ["update_norm", "clipped_share"]
        kinds += ["trust_ratio", "largest_trust_ratio"] if isinstance(optimizer, HasTrustRatios) else []
        return [*self._columns, *(f"{kind}.{name}" for kind in kinds for name in matrices)]

    @torch.no_grad()
    def columns(self) -> Mapping[str, Tensor]:
        """Return the columns after the step; NaN where a matrix has no trust ratio or no learning rate of its own.

        Raises:
            ConfigError: if :meth:`before_step` was not called.
        """
        if self._optimizer is None:
            raise ConfigError("optimizer_step has nothing to read: call before_step before the optimizer's step")
        columns, nothing = self._columns, next(iter(self._columns.values())).new_tensor(torch.nan)
        for name, param in self._params.items():
            moved = (param.detach() - self._before[name]).abs()
            lr = self._lrs.get(id(param))
            columns[f"update_norm.{name}"] = _norm(moved)
            columns[f"clipped_share.{name}"] = nothing if lr is None else (moved >= HELD * lr).double().mean()
        if isinstance(self._optimizer, HasTrustRatios):
            ratios = {id(param): pair for param, *pair in self._optimizer.trust_ratios()}
            for name, param in self._params.items():
                whole, largest = ratios.get(id(param), (nothing, nothing))
                columns |= {f"trust_ratio.{name}": whole, f"largest_trust_ratio.{name}": largest}
        self._before, self._optimizer, self._columns = {}, None, {}
        return columns


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach().double())
