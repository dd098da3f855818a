"""Products with the Gauss-Newton matrix and the Hessian against the dense matrices of torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from cbs.errors import ConfigError
from cbs.optimizers.problem import Problem
from cbs.spectrum.curvature import curvature_product, flat, shaped
from cbs.spectrum.record import GAUSS_NEWTON, HESSIAN

Batch = tuple[Tensor, Tensor]


class Network(nn.Module):
    """Two layers, and a parameter that the outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(4, 5)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def network() -> Network:
    torch.manual_seed(0)
    return Network().double()


def batch(size: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(size, 3, generator=generator, dtype=torch.float64),
        torch.randint(0, 5, (size,), generator=generator),
    )


def losses(outputs: Tensor, of: Batch) -> Tensor:
    return nn.functional.cross_entropy(outputs, of[1], reduction="none")


def problem(model: nn.Module, limit: int | None = None) -> Problem:
    return Problem(
        model=model,
        outputs=lambda model, of: model(of[0]),
        output_losses=losses,
        curvature_sample=lambda outputs, of, generator: outputs,
        micro_batch_size=limit,
    )


def dense(model: nn.Module, kind: str) -> Tensor:
    """The whole matrix."""
    parameters, of = list(model.parameters()), batch()
    names = [name for name, _ in model.named_parameters()]

    def outputs(vector: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, shaped(vector, parameters), strict=True)), (of[0],))

    at = flat(parameters)
    if kind == HESSIAN:
        return hessian(lambda vector: losses(outputs(vector), of).mean())(at)
    here, slope = outputs(at), jacrev(outputs)(at)
    curved = hessian(lambda found: losses(found, of).sum())(here)
    size = here.numel()
    return slope.reshape(size, -1).T @ curved.reshape(size, size) @ slope.reshape(size, -1) / len(of[1])


@pytest.mark.parametrize("limit", [None, 4], ids=["whole", "in parts"])
@pytest.mark.parametrize("kind", [GAUSS_NEWTON, HESSIAN])
def test_equals_the_dense_matrix(kind: str, limit: int | None) -> None:
    model = network()
    before = flat(list(model.parameters()))
    product = curvature_product(kind, model, lambda of: losses(model(of[0]), of).mean(), problem(model, limit), batch())
    whole = dense(model, kind)
    found = torch.stack([product(unit) for unit in torch.eye(len(before), dtype=torch.float64)])
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12)
    assert (torch.linalg.eigvalsh(whole).min() < -1e-3) == (kind == HESSIAN)
    assert torch.equal(flat(list(model.parameters())), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_without_curvature_has_none() -> None:
    model = network()
    linear = problem(model)
    linear = Problem(**{**vars(linear), "output_losses": lambda outputs, of: outputs.sum(1)})
    product = curvature_product(GAUSS_NEWTON, model, lambda of: of, linear, batch())
    assert not product(torch.ones(len(flat(list(model.parameters()))), dtype=torch.float64)).any()


def test_what_cannot_be_is_said_in_one_line() -> None:
    model = network()
    with pytest.raises(ConfigError, match="needs the model's outputs; use --curvature hessian"):
        curvature_product(GAUSS_NEWTON, model, lambda of: of, None, batch())
    with pytest.raises(ConfigError, match="curvature must be gauss_newton or hessian, got 'fisher'"):
        curvature_product("fisher", model, lambda of: of, problem(model), batch())
