"""A parameter read as matrices: sides, views and their inverse."""

import pytest
import torch
from torch import nn

from cbs.optimizers.layout import LAYOUTS, as_matrices, as_parameter, fans, kinds

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


def test_the_last_linear_layer_is_a_guess_and_that_inside_attention_is_not_it() -> None:
    last, attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2)
    found = kinds(nn.Sequential(nn.Linear(8, 8), last, attention))
    assert [guessed for _, _, guessed in found.values() if guessed] == [True]
    assert found[id(last.weight)] == ("hidden", "out_in", True)
    assert found[id(attention.out_proj.weight)] == ("hidden", "out_in", False)
