from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers.linear import LinearWeight, TransposedLinear
from cbs.noise_scale.probe import Probe
from tests.references.per_example import Elementwise, Euclidean, assert_exact, watch

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-12


@pytest.mark.parametrize("geometry", [Euclidean(), Elementwise()], ids=["norms", "values"])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (20, 5)])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_examples_first_with_any_further_dimensions(shape: tuple[int, ...], source: str, geometry: Euclidean) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    x, weights = torch.randn(8, *shape).double(), torch.randn(8, *shape[:-1], 2).double()

    def losses(model: nn.Module) -> Tensor:
        return (model(x) * weights).flatten(1).sum(1)

    assert_exact(model, losses, source=source, groups=4, rtol=RTOL, geometries=(geometry,))


def test_rows_of_an_example_may_follow_one_another() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, 5).double()

    class Flattening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.flatten(0, 1)).view(*x.shape[:2], -1)

    assert_exact(
        Flattening().double(), lambda model: model(x).square().sum((1, 2)), source="split", groups=4, rtol=RTOL
    )


def test_an_input_that_is_the_same_for_all_examples() -> None:
    torch.manual_seed(0)
    x, query = torch.randn(6, 4, 5).double(), torch.randn(1, 2, 5).double()

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            return (self.query(query) @ x.mT).softmax(-1) @ x

    for source in ("split", "per_example"):
        assert_exact(
            Attention().double(), lambda model: model(x).square().sum((1, 2)), source=source, groups=4, rtol=RTOL
        )


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_gram_form_is_the_norm_of_what_is_written_out(rows: int) -> None:
    torch.manual_seed(0)
    part = LinearWeight(torch.randn(4, rows, 6).double(), torch.randn(4, rows, 5).double())
    torch.testing.assert_close(part.square(), part.dense(0, 4).square().sum())
    torch.testing.assert_close(part.total(), part.dense(0, 4).sum(0))


def test_short_sequences_use_the_gram_form_and_long_ones_do_not() -> None:
    short, long = (LinearWeight(torch.ones(2, rows, 64), torch.ones(2, rows, 64)) for rows in (1, 500))
    assert short.square() is not None
    assert long.square() is None


class Apart(nn.Module):
    """Passes something else than the examples to its layer."""

    def __init__(self, rearrange: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)
        self.rearrange = rearrange

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.rearrange(x))


@pytest.mark.parametrize(
    ("rearrange", "rows"), [(lambda x: x[:4], 4), (lambda x: x.transpose(0, 1), 12), (lambda x: x.sum((0, 1)), 3)]
)
def test_rows_that_cannot_belong_to_examples_are_an_error(rearrange: Callable[[Tensor], Tensor], rows: int) -> None:
    model = Apart(rearrange)
    error = rf"layer 'inner'.*{rows} rows for 6 examples.*batch_first.*accumulation"
    with Probe(model, source="split") as probe:
        model(torch.randn(6, 12, 5)).sum().backward()
        with pytest.raises(ConfigError, match=error):
            probe.step()


def conv1d() -> type[nn.Module]:
    """The linear layer of GPT-2 by its name alone."""

    class Conv1D(nn.Module):
        def __init__(self, nf: int, nx: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(nx, nf))
            self.bias = nn.Parameter(torch.zeros(nf))

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)

    Conv1D.__module__, Conv1D.__qualname__ = "transformers.pytorch_utils", "Conv1D"
    return Conv1D


@pytest.mark.parametrize("geometry", [Euclidean(), Elementwise()], ids=["norms", "values"])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_transposed_weights_of_transformers(source: str, geometry: Euclidean) -> None:
    torch.manual_seed(0)
    kind = conv1d()
    model = nn.Sequential(kind(7, 5), nn.Tanh(), kind(2, 7)).double()
    x = torch.randn(6, 3, 5).double()
    assert all(type(layer) is TransposedLinear for layer in watch(model)._layers)
    model = nn.Sequential(kind(7, 5), nn.Tanh(), kind(2, 7)).double()
    assert_exact(model, lambda model: model(x).square().sum((1, 2)), source=source, rtol=RTOL, geometries=(geometry,))


def test_a_subclass_with_a_forward_of_its_own_is_another_kind() -> None:
    class Doubled(conv1d()):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert type(watch(Doubled(7, 5))._layers[0]) is not TransposedLinear
