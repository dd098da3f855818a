"""A parameter read as matrices: sides, views and their inverse; the same function in other layouts trains alike."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers import build_optimizer
from cbs.optimizers.layout import LAYOUTS, as_matrices, as_parameter, fans
from cbs.trial.config import Choice

SHAPES = {
    "out_in": [(5, 3), (5, 3, 2, 2), (5, 3, 4)],
    "in_out": [(3, 5), (3, 5, 2, 2)],
    "experts_out_in": [(4, 5, 3)],
    "experts_in_out": [(4, 3, 5)],
}


@pytest.mark.parametrize(("layout", "shape"), [(layout, shape) for layout in LAYOUTS for shape in SHAPES[layout]])
def test_sides_views_and_inverse_agree(layout: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    matrices = as_matrices(tensor, layout)
    assert matrices.shape[-2:] == fans(shape, layout)
    assert fans(shape, layout)[0] == 5
    assert matrices.ndim == (3 if layout.startswith("experts") else 2)
    assert torch.equal(as_parameter(matrices, shape, layout), tensor)
    assert torch.equal(as_parameter(matrices.clone(), shape, layout), tensor)


def test_a_matrix_maps_the_inputs_of_its_module() -> None:
    x = torch.randn(2, 3)
    linear, kernel = nn.Linear(3, 5, bias=False), nn.Conv2d(3, 5, 2, bias=False)
    assert torch.equal(x @ as_matrices(linear.weight).T, linear(x))
    patch = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(as_matrices(kernel.weight) @ patch.flatten(), kernel(patch).flatten())
    back = nn.ConvTranspose2d(3, 5, 2, bias=False)
    place = torch.randn(1, 5, 2, 2)
    # The transposed convolution's adjoint is a convolution with 3 outputs, so its own matrix has the 3 as inputs.
    ahead = as_matrices(back.weight, "in_out")
    assert ahead.shape == (5, 3 * 4)
    adjoint = (back(torch.eye(3)[:, :, None, None]) * place).sum((1, 2, 3))
    torch.testing.assert_close((ahead.view(5, 3, 2, 2) * place[0][:, None]).sum((0, 2, 3)), adjoint)


def test_conv1d_and_experts_of_transformers() -> None:
    utils = pytest.importorskip("transformers.pytorch_utils")
    layer, x = utils.Conv1D(5, 3), torch.randn(2, 3)
    torch.testing.assert_close(x @ as_matrices(layer.weight, "in_out").T + layer.bias, layer(x))
    stack = torch.randn(4, 3, 5)
    torch.testing.assert_close(as_matrices(stack, "experts_in_out")[1] @ x[0], x[0] @ stack[1])


SPECTRAL = {
    "muon": {"lr_convention": "original"},
    "normuon": {"lr_convention": "original"},
    "mona": {"lr_convention": "original"},
    "muonh": {},
}


class Conv1D(nn.Module):
    """As that of transformers."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.T.contiguous())
        self.nf = len(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Linear(nn.Linear):
    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False)
        self.weight = nn.Parameter(weight.clone())


class Stack(nn.Module):
    """Experts ``[experts, out, in]``, or ``[experts, in, out]`` where they are transposed."""

    def __init__(self, weights: list[Tensor], *, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        self.each = nn.Parameter(torch.stack([w.T if is_transposed else w for w in weights]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,eio->beo" if self.is_transposed else "bi,eoi->beo", x, self.each).mean(1)


class Apart(nn.Module):
    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.each = nn.ModuleList(Linear(weight) for weight in weights)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([expert(x) for expert in self.each]).mean(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def trained(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """Outputs after five steps."""
    optimizer = build_optimizer(Choice(name=name, options={"orthogonalization": "svd", **SPECTRAL[name]}), model, 0.01)
    for _ in range(5):
        optimizer.zero_grad()
        (model(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()
    return model(x).detach()


EXPERTS = [drawn(5, 6) / 3, drawn(6, 5).T / 2, drawn(5, 1, 6)[:, 0] / 4]


@pytest.mark.parametrize("name", SPECTRAL)
@pytest.mark.parametrize(
    ("layer", "experts"),
    [
        (Conv1D, lambda: Apart(EXPERTS)),
        (Linear, lambda: Stack(EXPERTS, is_transposed=False)),
        (Conv1D, lambda: Stack(EXPERTS, is_transposed=True)),
    ],
)
def test_layouts_train_alike(name: str, layer: type[nn.Module], experts: Callable[[], nn.Module]) -> None:
    x = drawn(16, 4)

    def model(kind: type[nn.Module], mixed: nn.Module) -> nn.Module:
        return nn.Sequential(kind(drawn(6, 4)), nn.Tanh(), mixed, nn.Tanh(), kind(drawn(3, 5)))

    apart, other = trained(model(Linear, Apart(EXPERTS)), name, x), trained(model(layer, experts()), name, x)
    torch.testing.assert_close(other, apart, rtol=0, atol=1e-9)
    before = model(Linear, Apart(EXPERTS))(x)
    assert (apart - before).abs().max() > 1e-3
