"""Sophia: momentum over a clipped diagonal of the curvature (Liu et al. 2023, arXiv 2305.14342)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cbs.compute import seeding
from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.contract import check_count, evaluated
from cbs.optimizers.library import construct, from_pytorch_optimizer
from cbs.optimizers.problem import ModelFunction, ProblemOptimizer, count_examples, micro_batches

NEVER = 2**62  # Number of steps between the library's own Hessian estimates, which would need a graph of the gradient


class SophiaG(ProblemOptimizer, CompositeOptimizer):
    r"""Sophia with the Gauss-Newton-Bartlett estimator, arXiv 2305.14342, Algorithms 2 and 3.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        w \leftarrow (1 - \eta \lambda) w - \eta \, clip(m / \max(\gamma h, \epsilon), 1)

    On every ``interval``-th step, beginning with the first, :math:`h \leftarrow \beta_2 h + (1 - \beta_2) \hat h` where
    :math:`\hat h = B \hat g^2` and :math:`\hat g` is the gradient of the mean loss of the B examples at targets drawn
    from the model, or any vector of :attr:`Problem.curvature_sample` pulled back through the model. Its mean is the
    diagonal of the generalised Gauss-Newton matrix. In micro-batches of n examples it is the average of
    :math:`n \hat g^2`. The update is that of ``pytorch_optimizer.SophiaH``, handed :math:`\gamma \hat h`.

    Args:
        inner: a ``SophiaH`` with ``p=1``.
        gamma: scale of the curvature, above 0; the larger, the fewer entries are clipped.
        interval: steps between estimates of the curvature.

    Raises:
        ValueError: if a value is invalid.
    """

    def __init__(self, inner: torch.optim.Optimizer, *, gamma: float, interval: int) -> None:
        if not 0.0 < gamma < float("inf"):
            raise ValueError(f"gamma must be finite and above 0, got {gamma}")
        check_count("interval", interval)
        super().__init__([inner])
        self.gamma = gamma
        self.interval = interval

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the closure's result."""
        loss = evaluated(closure)
        batch, done = self.take_batch(), self.param_groups[0].get("step", 0)
        diagonal = None
        if done % self.interval == 0 or not self.state:
            generator = seeding.generator(self.problem.seed, f"curvature {done}")
            curvature = curvature_diagonal(self.function, batch, generator)
            by_param = dict(zip(map(id, self.function.parameters_in_order), curvature, strict=True))
            diagonal = [by_param[id(p)].mul_(self.gamma) for group in self.param_groups for p in group["params"]]
        self.step_parts(hessian=diagonal)
        return loss


def curvature_diagonal(function: ModelFunction, batch: Any, generator: torch.Generator) -> list[Tensor]:
    """Return an unbiased estimate of the diagonal of the generalised Gauss-Newton matrix of a batch's mean loss.

    Args:
        function: the model and its loss.
        batch: examples.
        generator: generator of the random vectors.

    Returns:
        One tensor for each parameter.
    """
    total = [torch.zeros_like(param) for param in function.parameters_in_order]
    for part in micro_batches(batch, function.problem.micro_batch_size):
        leaves = function.values()
        with torch.enable_grad():
            outputs = function.at(leaves, part)
        vectors = function.problem.curvature_sample(outputs.detach(), part, generator)
        pulled = torch.autograd.grad(outputs, leaves, vectors, materialize_grads=True)
        torch._foreach_addcmul_(total, pulled, pulled)
    torch._foreach_div_(total, float(count_examples(batch)))
    return total


@optimizer(
    "sophia",
    lr_grid=(2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    family="second order",
    geometry={SophiaG: "l1"},
    second_moment=False,
    paper="Liu et al. 2023, arXiv 2305.14342",
)
def sophia(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.9),
    gamma: float = 0.05,
    eps: float = 1e-12,
    weight_decay: float = 0.0,
    interval: int = 10,
) -> SophiaG:
    """Momentum over the diagonal of the Gauss-Newton matrix, each entry clipped (Sophia-G).

    The learning rate is the largest change of an entry per step. The paper's ``betas`` are (0.96, 0.99); with an
    estimate on every tenth step they average the curvature over a thousand steps, starting from 0, which is longer than
    small workloads train.

    Raises:
        ConfigError: if pytorch_optimizer is not installed.
        ValueError: if an option is invalid.
    """
    inner = construct(
        from_pytorch_optimizer("SophiaH"),
        trainable(model),
        lr,
        betas=betas,
        weight_decay=weight_decay,
        p=1.0,
        eps=eps,
        update_period=NEVER,
    )
    return SophiaG(inner, gamma=gamma, interval=interval)
