"""K-FAC: natural gradient with Kronecker-factored curvature (Martens & Grosse 2015, arXiv 1503.05671)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.compute import seeding
from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice, check_count, check_decay, evaluated, state_dtype
from cbs.optimizers.problem import Batch, Problem, ProblemOptimizer, count_examples, micro_batches
from cbs.optimizers.second_order.curvature import KINDS, curvature_vectors
from cbs.optimizers.second_order.kronecker import Inverse, inverse_of_product, inverse_of_sum
from cbs.optimizers.second_order.layer_uses import Use, is_supported, recorded_uses

Statistics = dict[tuple[int, str], Tensor]
"""Curvature statistics by position of the parameter and name of the state."""

MULTIPLIED, LOOKED_UP, DIAGONAL = ("rows", "columns"), ("lookup_rows", "lookup_columns"), "diagonal"
INVERSE = ("inverse_rows", "inverse_columns", "inverse_spectrum")
UNEXPLAINED = 0.05
"""Largest part of a weight's gradient, relative to it, that its recorded uses may fail to explain; rounding to bfloat16
causes 0.01."""


@optimizer(
    "kfac",
    lr_grid=(0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    family="second order",
    geometry="l2",
    paper="Martens & Grosse 2015, arXiv 1503.05671",
    width_rule="none",
)
class KFAC(ProblemOptimizer):
    r"""Kronecker-factored natural gradient.

    A step with gradient g of the batch and curvature F is

    .. math::
        m \leftarrow \mu m + (1 - \mu) g, \quad u = (F + \lambda I)^{-1} m, \quad
        w \leftarrow (1 - \eta \beta) w - \nu \eta u, \quad \nu = \min(1, \sqrt{\kappa / (\eta^2 m^\top u)})

    with learning rate :math:`\eta`, ``momentum`` :math:`\mu`, ``weight_decay`` :math:`\beta` (decoupled), ``damping``
    :math:`\lambda` and ``kl_clip`` :math:`\kappa`, a bound on twice the KL divergence of a step according to F (Ba,
    Grosse & Martens 2017, ICLR). The paper averages past updates instead of gradients. These were computed with older
    curvature, so that training diverges, early when curvature grows fast, at learning rates that work here.

    F is block diagonal. It is estimated from vectors z whose covariance is the curvature of the loss with respect to
    the outputs (``curvature``, see :func:`cbs.optimizers.second_order.curvature.curvature_vectors`), pulled back
    through the model on the examples of the step. Let D be the pulled-back gradient with respect to the output of a
    layer, with one row for each position (a token, a location of a convolution) of each of B examples, and A the inputs
    of the layer, N rows with a 1 appended where there is a bias:

    - Linear and convolution: row factor D'D / B, column factor A'A / N. Positions count as independent (``expand``,
      Eschenhagen et al. 2023, arXiv 2311.00636; for convolutions Grosse & Martens 2016, arXiv 1602.01573).
    - Embedding: the same with one-hot inputs and exchanged sides: row factor the frequencies of the indices, column
      factor D'D / B.
    - A weight that is used both ways, such as an embedding tied to the head: the sum of both products, which is
      inverted exactly.
    - Any other parameter: the diagonal of F, estimated by the square of the pulled-back gradient over B.

    Several calls of layers with one weight count as more positions. Weights whose uses cannot all be recorded, such as
    those of ``nn.MultiheadAttention``, are treated as other parameters. Sides of more than ``largest_factor`` entries
    have diagonal factors. Statistics are averaged over their updates, the k-th with weight
    :math:`\max(1/k, 1 - decay)`. They are updated on every ``factor_interval``-th step and inverted on every
    ``inverse_interval``-th, beginning with the first. A missing gradient counts as zero.

    No noise scale matches a step that is preconditioned by the curvature; its geometry is the Euclidean one.

    Args:
        params: parameters of the problem's model, or groups of them.
        lr: learning rate; 1 is Newton's step for the averaged gradient.
        momentum: decay per step of the average gradient, in [0, 1).
        weight_decay: decoupled, at least 0.
        damping: added to the curvature, above 0; in the unit of the loss per squared unit of a parameter.
        kl_clip: bound on the step, above 0; ``None`` for no bound.
        decay: decay of the statistics per update of them, in [0, 1).
        factor_interval: number of steps between updates of the statistics.
        inverse_interval: number of steps between inversions.
        curvature: ``"sampled"`` or ``"empirical"``.
        largest_factor: largest side of a full factor.

    Raises:
        ValueError: if a value is invalid.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        damping: float = 0.01,
        kl_clip: float | None = 0.01,
        decay: float = 0.95,
        factor_interval: int = 5,
        inverse_interval: int = 5,
        curvature: str = "sampled",
        largest_factor: int = 4096,
    ) -> None:
        for name, value in {"damping": damping, "kl_clip": math.inf if kl_clip is None else kl_clip}.items():
            if not value > 0.0:
                raise ValueError(f"{name} must be above 0, got {value}")
        check_decay("decay", decay)
        intervals = {"factor_interval": factor_interval, "inverse_interval": inverse_interval}
        for name, count in (intervals | {"largest_factor": largest_factor}).items():
            check_count(name, count)
        check_choice("curvature", curvature, KINDS)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "step": 0})
        self.damping, self.decay = damping, decay
        self.kl_clip = math.inf if kl_clip is None else kl_clip
        self.factor_interval, self.inverse_interval = factor_interval, inverse_interval
        self.curvature = curvature
        self.largest_factor = largest_factor

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_decay("momentum", group["momentum"])

    def attach(self, problem: Problem) -> None:
        """Set the problem to optimize; call it once, before the first step.

        Raises:
            ValueError: if the optimizer was not built over all trainable parameters of the model.
        """
        super().attach(problem)
        self._params = self.function.parameters_in_order
        held = {id(param) for group in self.param_groups for param in group["params"]}
        if held != {id(param) for param in self._params}:
            raise ValueError("KFAC must be built over exactly the trainable parameters of the problem's model")
        positions = {id(param): index for index, param in enumerate(self._params)}
        owners: dict[int, list[nn.Module]] = {}
        for module in self.function.twin.modules():
            for param in module.parameters(recurse=False):
                owners.setdefault(id(param), []).append(module)
        self._weights = {
            module: positions[id(module.weight)]
            for module in self.function.twin.modules()
            if is_supported(module) and id(module.weight) in positions
        }
        # A bias is treated as a further column of the weight if both belong to this module only.
        self._biases = {
            index: positions[id(module.bias)]
            for module, index in self._weights.items()
            if id(getattr(module, "bias", None)) in positions
            and len(owners[id(module.bias)]) == len(owners[id(module.weight)]) == 1
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter once; return the closure's result."""
        loss = evaluated(closure)
        batch, _ = self.take_batch(), self.problem
        if not all(self.state.get(param) for param in self._params):
            # At the first step, or if state was removed, statistics start again.
            self.state.clear()
            for group in self.param_groups:
                group["step"] = 0
        done = self.param_groups[0]["step"]
        if done % self.factor_interval == 0:
            self._average(self._measure(batch, first=done == 0), 1 + done // self.factor_interval)
        if done % self.inverse_interval == 0:
            self._invert()
        averages = []
        groups = {id(param): group for group in self.param_groups for param in group["params"]}
        for param in self._params:
            state, momentum = self.state[param], groups[id(param)]["momentum"]
            if "average" not in state:
                state["average"] = torch.zeros_like(param, dtype=state_dtype(param))
            average = state["average"].mul_(momentum)
            if param.grad is not None:
                average.add_(param.grad, alpha=1.0 - momentum)
            averages.append(average)
        updates, lrs = self._precondition(averages), [float(groups[id(param)]["lr"]) for param in self._params]
        for update, lr in zip(updates, lrs, strict=True):
            update.mul_(lr)
        scale = self._scale(averages, updates, lrs)
        for param, update, lr in zip(self._params, updates, lrs, strict=True):
            param.mul_(1.0 - lr * groups[id(param)]["weight_decay"]).sub_(update * scale)
        for group in self.param_groups:
            group["step"] += 1
        return loss

    def _scale(self, averages: Sequence[Tensor], updates: Sequence[Tensor], lrs: Sequence[float]) -> Tensor | float:
        """Return the factor by which a step is shortened to respect the bound."""
        if self.kl_clip == math.inf:
            return 1.0
        squares = [lr * (m * u).sum() for m, u, lr in zip(averages, updates, lrs, strict=True)]
        return (self.kl_clip / torch.stack(squares).sum().clamp(min=self.kl_clip)).sqrt()

    def _measure(self, batch: Batch, *, first: bool) -> Statistics:
        """Return the curvature statistics of a batch."""
        sums: dict[tuple[int, str], Sum] = {}
        generator = seeding.generator(self.problem.seed, f"curvature {self.param_groups[0]['step']}")
        for part in micro_batches(batch, self.problem.micro_batch_size):
            leaves = self.function.values()
            with torch.enable_grad(), recorded_uses(self.function.twin) as uses:
                outputs = self.function.at(leaves, part)
            uses = [use for use in uses if use.module in self._weights]
            vectors = curvature_vectors(self.problem, outputs, part, generator, self.curvature)
            others = [index for index, param in enumerate(self._params) if first or DIAGONAL in self.state[param]]
            inputs: list[Any] = [*(use.edge for use in uses), *(leaves[index] for index in others)]
            pulled = torch.autograd.grad(outputs, inputs, vectors, allow_unused=True)
            gradients = {
                index: gradient
                for index, gradient in zip(others, pulled[len(uses) :], strict=True)
                if gradient is not None
            }
            reached = [(use, use.gradients(g)) for use, g in zip(uses, pulled, strict=False) if g is not None]
            if first:
                for index in set(others) - self._explained(reached, gradients):
                    param = self._params[index]
                    self.state[param][DIAGONAL] = torch.zeros_like(param, dtype=state_dtype(param))
                first = False
            for use, gradient in reached:
                self._add_use(sums, use, gradient)
            for index, gradient in gradients.items():
                if DIAGONAL in self.state[self._params[index]]:
                    add(sums, (index, DIAGONAL), gradient.square())
        total = count_examples(batch)
        return {key: entry.value / (entry.positions or total) for key, entry in sums.items()}

    def _explained(self, uses: Sequence[tuple[Use, Tensor]], gradients: dict[int, Tensor]) -> set[int]:
        """Return the weights and joined biases whose gradients equal the sum over their recorded uses."""
        sums: dict[int, Tensor] = {}
        for use, gradient in uses:
            index = self._weights[use.module]
            sums[index] = sums.get(index, 0.0) + use.weight_gradient(gradient)
            if index in self._biases:
                bias = self._biases[index]
                sums[bias] = sums.get(bias, 0.0) + gradient.sum(0)
        good = {
            index
            for index, value in sums.items()
            if (value - gradients[index]).norm() <= UNEXPLAINED * gradients[index].norm()
        }
        bias_of = self._biases
        weights = {i for i in good & set(self._weights.values()) if i not in bias_of or bias_of[i] in good}
        return weights | {bias_of[index] for index in weights if index in bias_of}

    def _add_use(self, sums: dict[tuple[int, str], Sum], use: Use, gradient: Tensor) -> None:
        index, inputs = self._weights[use.module], use.inputs
        if DIAGONAL in self.state[self._params[index]]:
            return
        outer = self._second_moment(gradient)
        if isinstance(use.module, nn.Embedding):
            of_inner, of_outer = LOOKED_UP
            inner = torch.bincount(inputs, minlength=len(use.module.weight)).to(outer)
        else:
            if index in self._biases:
                inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
            of_outer, of_inner = MULTIPLIED
            inner = self._second_moment(inputs)
        add(sums, (index, of_outer), outer)
        add(sums, (index, of_inner), inner, len(inputs))

    def _second_moment(self, values: Tensor) -> Tensor:
        """Return the sum over the first dimension of outer products; only their diagonals if there are many entries."""
        return values.T @ values if values.shape[1] <= self.largest_factor else values.square().sum(0)

    def _average(self, statistics: Statistics, count: int) -> None:
        """Add the ``count``-th measurement to the averages."""
        weight = max(1.0 / count, 1.0 - self.decay)
        for (index, name), value in statistics.items():
            value = value.to(state_dtype(value))
            self.state[self._params[index]].setdefault(name, torch.zeros_like(value)).lerp_(value, weight)

    def _invert(self) -> None:
        for param in self._params:
            state = self.state[param]
            products = [(state[rows], state[columns]) for rows, columns in (LOOKED_UP, MULTIPLIED) if rows in state]
            if products:
                inverse = (
                    inverse_of_sum(products[0], products[1], self.damping)
                    if len(products) == 2
                    else inverse_of_product(products[0], self.damping)
                )
                state.update(zip(INVERSE, (inverse.rows, inverse.columns, inverse.spectrum), strict=True))

    def _precondition(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """Return the damped inverse of the curvature times ``averages``, as new tensors."""
        updates: dict[int, Tensor] = {}
        for index, param in enumerate(self._params):
            state, average = self.state[param], averages[index]
            if DIAGONAL in state:
                updates[index] = average / (state[DIAGONAL] + self.damping)
            elif INVERSE[0] in state:
                v, bias = average.flatten(1), self._biases.get(index)
                solved = Inverse(*(state[name] for name in INVERSE))(
                    v if bias is None else torch.cat([v, averages[bias][:, None]], 1)
                )
                if bias is not None:
                    updates[bias] = solved[:, -1].contiguous()
                    solved = solved[:, :-1]
                updates[index] = solved.reshape(param.shape).clone()
        return [updates[index] for index in range(len(averages))]


@dataclass
class Sum:
    """A sum over examples, or over positions, whose number it then holds."""

    value: Tensor
    positions: int = 0


def add(sums: dict[tuple[int, str], Sum], key: tuple[int, str], value: Tensor, positions: int = 0) -> None:
    """Add to the sum with this key."""
    known = sums.get(key)
    sums[key] = Sum(value, positions) if known is None else Sum(known.value + value, known.positions + positions)
