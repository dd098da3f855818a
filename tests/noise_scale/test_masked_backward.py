"""Groups of a batch by masked backward passes: exact for whatever a model computes, and nothing in training changes."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.cut import Cut
from cbs.noise_scale.grouping import copies
from tests.references.per_example import assert_exact, watch

EXAMPLES = 12


class Bare(nn.Module):
    """A scalar parameter times a frozen table whose rows look like examples."""

    def __init__(self, rows: int = EXAMPLES) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("table", torch.randn(rows, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ (self.scale * self.table).T)


class Positions(nn.Module):
    """Positions go through layers of their own, as many as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.head = nn.Linear(1, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        grid = torch.linspace(0, 1, EXAMPLES, dtype=x.dtype)[:, None]
        return self.head(torch.tanh(x + self.mlp(grid).mean(0)))


class Kernels(nn.Module):
    """Distances to as many centres as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.head = nn.Parameter(torch.randn(EXAMPLES, 6)), nn.Linear(EXAMPLES, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((-torch.cdist(x, self.centres)).exp())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 4, 2, batch_first=True, dropout=0.3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(len(x), 3, 2))[0][:, -1])


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6, dtype=torch.cdouble)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.to(torch.cdouble)).abs()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a table with as many rows": Bare,
    "a table with rows of two examples": lambda: Bare(2 * EXAMPLES),
    "positions": Positions,
    "kernels": Kernels,
    "recurrent, with dropout": Recurrent,
    "complex": Complex,
    "bilinear": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
}


@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize("name", MODELS)
def test_groups_are_those_of_a_loop(name: str, source: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().double(), torch.randn(EXAMPLES, 6).double()
    if name == "spectral norm":
        model.eval()  # its vectors are iterated in training

    def losses(model: nn.Module) -> Tensor:
        torch.manual_seed(1)
        return model(x).square().flatten(1).sum(1) / EXAMPLES

    assert_exact(model, losses, source=source, groups=3, rtol=1e-10)


DTYPES = (torch.float32, torch.bfloat16, torch.float64)
CASES = [
    (name, DTYPES[(row + column) % 3], source)
    for row, name in enumerate(name for name in MODELS if name != "complex")
    for column, source in enumerate(("split", "per_example", "accumulation"))
]
"""Every model with every source and in every precision, and every source in every precision."""


@pytest.mark.parametrize(("name", "dtype", "source"), CASES)
def test_no_bit_of_a_gradient_changes(name: str, dtype: torch.dtype, source: str) -> None:
    if dtype is torch.bfloat16 and name == "kernels":
        dtype = torch.float32  # cdist does not run in bfloat16
    torch.manual_seed(0)
    plain = MODELS[name]().to(dtype)
    watched = copy.deepcopy(plain)
    watcher = watch(watched, source)
    for _ in range(3):
        x = torch.randn(EXAMPLES, 6, dtype=dtype)
        found = []
        for model in (plain, watched):
            torch.manual_seed(2)
            model(x).square().mean().backward()
            found.append([parameter.grad for parameter in model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
        watcher.collect()
        watcher.sample.forget()


@dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]


class Records(nn.Module):
    """An output in a dataclass, a part of which another part is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Output:
        hidden = torch.tanh(self.first(x))
        return Output(self.last(hidden), [hidden])


def of_records(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x)
    return found.logits.square().sum(1) + found.hidden[0].abs().sum(1)


def in_place(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x).logits
    found *= 2
    return found.square().sum(1)


@pytest.mark.parametrize("losses", [of_records, in_place])
def test_outputs_are_used_in_any_way(losses: Callable[[nn.Module, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, 6).double()
    assert_exact(Records().double(), lambda model: losses(model, x), source="split", rtol=1e-10)


class ReturnsLoss(nn.Module):
    """Returns its loss, alone or beside what it is made of.

    Args:
        output: whether the logits are returned.
        heads: that the loss is made of.
        penalty: of the weights.
        mixes: whether examples are centred over the batch.
        major: whether examples come second in the layers.
    """

    def __init__(
        self, *, output: bool = False, heads: int = 1, penalty: float = 0.0, mixes: bool = False, major: bool = False
    ) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(heads))
        self.output, self.penalty, self.mixes, self.major = output, penalty, mixes, major

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.body(x.unflatten(1, (2, 3)).mT.flatten(0, 1).repeat(1, 3) if self.major else x))
        hidden = hidden - hidden.mean(0) if self.mixes else hidden
        outputs = [head(hidden.view(len(x), -1, 4).transpose(0, 1).reshape(-1, 4) if self.major else hidden)
                   for head in self.heads]  # fmt: skip
        loss = sum(output.square().mean() for output in outputs)
        loss = loss + self.penalty * sum(parameter.square().sum() for parameter in self.parameters())
        return (loss, *outputs) if self.output else loss


def noise(model: nn.Module, x: Tensor, loss: Callable[[Any], Tensor] = lambda found: found) -> float:
    with NoiseScaleMeter(model, source="split") as meter:
        loss(model(x)).backward()
        step = meter.step()
    return float(step.noise)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("output", [False, True])
def test_a_loss_that_the_model_returns(output: bool, heads: int) -> None:
    torch.manual_seed(0)
    model, x = ReturnsLoss(output=output, heads=heads).double(), torch.randn(EXAMPLES, 6).double()
    wanted = 0.0
    halves = []
    for half in x.chunk(2):
        model.zero_grad()
        found = model(half)
        (found[0] if output else found).backward()
        halves.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    wanted = float((halves[0] - halves[1]).square().sum()) / 4 / (1 / 6 - 1 / 12)
    model.zero_grad()
    assert noise(model, x, lambda found: found[0] if output else found) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"penalty": 0.1}, "in another way than through the output|computed inside the model"),
        ({"mixes": True}, "depends on others"),
        ({"major": True}, "depends on others"),
    ],
)
def test_what_a_loss_inside_hides_is_found(options: dict[str, Any], said: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=said):
        noise(ReturnsLoss(**options), torch.randn(EXAMPLES, 6))


def test_the_cut_is_no_larger_than_it_has_to_be() -> None:
    torch.manual_seed(0)
    model = ReturnsLoss(heads=2)
    watcher = watch(model)
    model(torch.randn(EXAMPLES, 6)).backward()
    cut: Cut = watcher._cut
    assert cut.names == {"heads.0", "heads.1"}


class Chosen(nn.Module):
    """Each of two experts takes the half of the batch that scores highest with it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.Parameter(torch.randn(2, 6, 3))

    def forward(self, x: Tensor) -> Tensor:
        values, rows = self.gate(x).softmax(-1).T.topk(len(x) // 2)
        found = torch.einsum("kri,kio->kro", x[rows], self.experts) * values[..., None]
        return x.new_zeros(len(x), 3).index_add(0, rows.flatten(), found.flatten(0, 1))


@pytest.mark.parametrize("examples", [4, 12])
def test_experts_that_choose_rows_are_found_in_the_first_step(examples: int) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        model = Chosen()
        meter = NoiseScaleMeter(model, source="split")
        for _ in range(4):
            (model(torch.randn(examples, 6)).square().mean() / 4).backward()
        with pytest.raises(ConfigError, match="for one example depends on others"):
            meter.step()
        meter.detach()


@pytest.mark.parametrize(("members", "order"), [(1, None), (2, None), (2, [0, 3, 1, 5, 2, 4])])
def test_copies_are_of_one_group_that_stays(members: int, order: list[int] | None) -> None:
    places = torch.tensor(order or list(range(6))).view(-1, members)
    units = places.tolist()
    seen = set()
    for seed in range(20):
        kept = torch.zeros(6, dtype=torch.bool)
        kept[[each for unit in units[:2] for each in unit]] = True
        found = copies(kept, places, seed)
        groups = [[int(found[each]) for each in unit] for unit in units]
        assert all(group == groups[0] for group in groups)
        seen.add(units.index(groups[0]))
    assert seen == {0, 1}


class RowsLeftOut(nn.Module):
    """The layer is left out for some examples, whose output is the same for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh() * (torch.rand(len(x), 1) > 0.6))


def test_layers_left_out_for_some_examples_are_no_alarm() -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        model = RowsLeftOut()
        with NoiseScaleMeter(model, source="split") as meter:
            model(torch.randn(4, 6)).square().mean().backward()
            assert meter.step() is not None


class Fixed(nn.Module):
    """As many rows as examples, and nothing of the examples in them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(EXAMPLES, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows * 2


def test_rows_without_anything_of_the_examples_are_refused() -> None:
    meter = NoiseScaleMeter(Fixed(), source="split")
    meter.probe._model(torch.randn(EXAMPLES, 6)).square().mean().backward()
    with pytest.raises(ConfigError, match="does not depend on the examples"):
        meter.step()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [2, 12])
def test_rounding_in_bfloat16_is_no_alarm(seed: int, depth: int) -> None:
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(6, 6), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(6, 3))
    with NoiseScaleMeter(model, source="split") as meter:
        for _ in range(2):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(EXAMPLES, 6)).float().square().mean()
            loss.backward()
            meter.step()
    assert meter.estimate().steps == 2
