from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-11
EXAMPLES = 9


class Scaled(nn.Module):
    """Own parameters, a list of them, a buffer and a child."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(4))
        self.rows = nn.ParameterList([torch.randn(4), torch.randn(4, 4)])
        self.register_buffer("offset", torch.randn(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, twice: bool = False) -> Tensor:
        x = self.inner(x * self.gain) + self.rows[0] + self.offset
        return torch.tanh(x @ self.rows[1]) * (2 if twice else 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 3, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(4, 3, num_layers=2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        output, last = self.inner(x.transpose(0, 1))
        return output.transpose(0, 1) + last.sum(0)[:, None].repeat(1, 1, 2)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.inner(x, x, x, attn_mask=mask, is_causal=True)[0]


class Positions(nn.Module):
    """The same for all examples, and used by a module that calls it without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 5, 4))

    def forward(self) -> Tensor:
        return self.table.sin()


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.positions())


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x=x, twice=True)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "own parameters": Scaled,
    "keyword arguments": Keywords,
    "lstm": Recurrent,
    "gru": TimeFirst,
    "attention": Attending,
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "prelu": lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()),
    "weight norm": lambda: nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.Tanh()),
    "transposed convolution": lambda: nn.ConvTranspose1d(5, 2, 3),
    "instance norm": lambda: nn.InstanceNorm1d(5, affine=True),
    "positions": Placed,
    "called twice": lambda: nn.Sequential(*[Scaled()] * 2),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_other_types(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, 5, 4).double()
    model = MODULES[name]().double()
    for source in ("split", "per_example"):
        model.zero_grad()
        assert_exact(model, lambda model: model(x).square().flatten(1).sum(1), source=source, groups=4, rtol=RTOL)


def test_conv1d_of_transformers_with_rows_of_examples_following_one_another() -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES * 5, 4).double()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = conv1d(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.flatten(0, 1)).view(EXAMPLES, 5, -1)

    assert_exact(
        Outer().double(),
        lambda model: model(x.view(EXAMPLES, 5, 4)).square().sum((1, 2)),
        source="per_example",
        rtol=RTOL,
    )


def test_buffers_and_random_numbers_are_left_alone() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.gain

    model = Counting()
    with Probe(model, source="split"):
        torch.manual_seed(0)
        model(torch.randn(4, 3)).sum().backward()
    after = torch.rand(())
    torch.manual_seed(0)
    torch.randn(4, 3)
    assert torch.equal(after, torch.rand(()))
    assert model.calls == 1


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) * self.gain


class Noisy(Centred):
    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True) * self.gain


@pytest.mark.parametrize("source", ["split", "per_example"])
def test_a_module_that_mixes_examples_is_an_error(source: str) -> None:
    torch.manual_seed(0)
    model = Centred()
    with Probe(model, source=source) as probe:
        model(torch.randn(12, 3)).square().sum().backward()
        with pytest.raises(ConfigError, match=r"depends on others.*accumulation"):
            probe.step()


@pytest.mark.parametrize("source", ["split", "per_example"])
def test_random_numbers_are_those_of_an_unwatched_model(source: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 3).double()

    def losses(model: nn.Module) -> Tensor:
        torch.manual_seed(1)
        return model(x).square().sum(1)

    assert_exact(Noisy().double(), losses, source=source, rtol=RTOL)


class Multiplied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ self.weight, 0)


def test_a_function_that_mixes_examples_where_it_meets_a_parameter_is_an_error() -> None:
    class Mixed(Multiplied):
        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(x, x @ x.T, x @ self.weight)  # the softmax of another model

    torch.manual_seed(0)
    for model in (Multiplied(), Mixed()):
        with Probe(model, source="split") as probe:
            model(torch.randn(6, 3)).square().sum().backward()
            with pytest.raises(ConfigError, match="accumulation"):
                probe.step()
        assert model.weight.grad is not None


def test_a_parameter_that_meets_no_examples_is_an_error_and_has_its_gradient() -> None:
    class Penalised(Multiplied):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).square().mean() + self.weight.square().sum()

    torch.manual_seed(0)
    model, x = Penalised(), torch.randn(6, 3)
    wanted = torch.autograd.grad(model(x), model.weight)[0]
    with Probe(model, source="split") as probe:
        model(x).backward()
        with pytest.raises(ConfigError, match=r"no dimension of examples.*accumulation"):
            probe.step()
    torch.testing.assert_close(model.weight.grad, wanted)
