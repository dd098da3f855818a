"""Statistics of groups of examples the slow way: one backward pass per group."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries import as_real
from cbs.noise_scale.moments import Sizes
from cbs.noise_scale.sources import SOURCES


def group_gradients(model: nn.Module, losses: Callable[[], Tensor], groups: list[list[int]]) -> list[list[Tensor]]:
    """Contribution of every group to the gradient of every trainable parameter tensor.

    Args:
        model: whose parameters are differentiated.
        losses: the contributions of all examples to the loss, shape ``[examples]``.
        groups: examples of every group.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        list(torch.autograd.grad(losses()[group].sum(), parameters, materialize_grads=True, allow_unused=True))
        for group in groups
    ]


def small_statistics(
    gradients: list[list[Tensor]], groups: list[list[int]], statistic: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    r""":math:`\sum_j T(c_j)/w_j` of every parameter tensor, :math:`w_j` the share of the examples."""
    examples = sum(map(len, groups))
    return [
        sum(
            statistic(as_real(gradient)) * examples / len(group) for gradient, group in zip(column, groups, strict=True)
        )
        for column in zip(*gradients, strict=True)
    ]


def neighbours(examples: int, groups: int) -> list[list[int]]:
    """Examples of neighbouring groups of one size, one group more until all examples are in one."""
    while examples % groups:
        groups += 1
    return torch.arange(examples).view(groups, -1).tolist()


class Euclidean:
    """Squared Euclidean norm, from norms alone."""

    name = "euclidean"
    exponent = 1
    norms_suffice = True

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        pass

    def covers(self, index: int) -> bool:
        return True

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        return gradients.to(torch.promote_types(gradients.dtype, torch.float32)).square().sum()

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Elementwise(Euclidean):
    """Squares of the single entries, which needs every gradient written out."""

    name = "elementwise"
    norms_suffice = False

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        return gradients.to(torch.promote_types(gradients.dtype, torch.float32)).square().sum(0)


def watch(
    model: nn.Module, source: str = "split", geometries: Sequence[Euclidean] = (Euclidean(),), **options: Any
) -> Any:
    """A source that is attached to a model; the batch falls into two groups if nothing else is said."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    watcher = SOURCES[source](model, parameters, geometries, **{"groups": 2, **options})
    watcher.attach()
    return watcher


def assert_exact(
    model: nn.Module,
    losses: Callable[[nn.Module], Tensor],
    *,
    source: str,
    groups: int = 2,
    rtol: float,
    geometries: Sequence[Euclidean] = (Euclidean(), Elementwise()),
) -> None:
    """Compare a source with the loop over groups, and the gradients of the watched model with those of a copy.

    Args:
        model: to watch; without gradients.
        losses: contributions of all examples to the loss, from a model, shape ``[examples]``.
        source: name of the source.
        groups: number of groups the source is asked for.
        rtol: of statistics and gradients, relative to the Euclidean norm of the parameter tensor's.
        geometries: to measure in.
    """
    copy = deepcopy(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    watcher = watch(model, source, geometries, groups=groups)
    seen = []
    for _ in range(2):  # the first pass through a model may differ from those that follow
        model.zero_grad()
        total = losses(model)
        total.sum().backward()
        seen.append((watcher.collect(), [parameter.grad for parameter in parameters]))
    watcher.detach()
    examples = len(total)
    members = neighbours(examples, examples if source != "split" else min(groups, examples))
    slow = group_gradients(copy, lambda: losses(copy), members)
    for small, gradients in seen:
        assert small.sizes == Sizes(small=examples / len(members), big=examples, groups=len(members))
        for geometry, found in zip(geometries, small.statistics, strict=True):
            wanted = small_statistics(slow, members, lambda gradient, of=geometry: of.statistic(0, gradient[None]))
            wanted = [value for index, value in enumerate(wanted) if geometry.covers(index)]
            for value, want in zip(found, wanted, strict=True):
                assert_near(value, want, rtol)
        for parameter, gradient, column in zip(parameters, gradients, zip(*slow, strict=True), strict=True):
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            assert_near(gradient, torch.stack(column).sum(0), rtol)


def assert_near(value: Tensor, wanted: Tensor, rtol: float) -> None:
    """Fail unless the difference is small beside the wanted tensor."""
    value, wanted = as_real(value).double(), as_real(wanted).double()
    difference = torch.linalg.vector_norm(value - wanted)
    assert difference <= rtol * torch.linalg.vector_norm(wanted), (value, wanted)
