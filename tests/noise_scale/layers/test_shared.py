from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers.shared import are_places
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact

RTOL = 1e-11
"""Double precision leaves rounding of sums of some hundred products."""

WIDTH = 8


class Placed(nn.Module):
    """Tokens and something that is the same for all examples, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, WIDTH)
        self.table = nn.Embedding(40, WIDTH)
        self.rows = nn.Parameter(torch.randn(1, 16, WIDTH))
        self.plain_rows = nn.Parameter(torch.randn(16, WIDTH))
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3)

    def embed(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.embed(self.tokens(ids)))
        return x + self.inner(self.norm(x)).tanh()


class Looked(Placed):
    def embed(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1]))


class LookedUnsqueezed(Placed):
    def embed(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1])).unsqueeze(0)


class LookedNormalised(Placed):
    """A watched layer sees them, too."""

    def embed(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(self.table(torch.arange(x.shape[1]))))


class Distances(Placed):
    """As the relative positions of T5: one table of distances, added to attention in place."""

    def embed(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        bias = self.table(places[None] - places[:, None] + 20)[..., :2].permute(2, 0, 1).unsqueeze(0)
        heads = x.unflatten(2, (2, -1)).transpose(1, 2)
        scores = heads @ heads.mT
        scores += bias
        return (scores.softmax(-1) @ heads).transpose(1, 2).flatten(2)


class Masked(Placed):
    """Random numbers are drawn in the function that meets them."""

    def embed(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        bias = self.table(places[None] - places[:, None] + 20)[..., :2].permute(2, 0, 1).unsqueeze(0)
        heads = x.unflatten(2, (2, -1)).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(heads, heads, heads, bias, dropout_p=0.3)
        return seen.transpose(1, 2).flatten(2)


class Rows(Placed):
    def embed(self, x: Tensor) -> Tensor:
        return x + self.rows[:, : x.shape[1]]


class PlainRows(Placed):
    def embed(self, x: Tensor) -> Tensor:
        return x + self.plain_rows[: x.shape[1]] * 2


class Prefixed(Placed):
    """As the class token of vision transformers."""

    def embed(self, x: Tensor) -> Tensor:
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.rows[:, : x.shape[1] + 1]


class Written(Placed):
    def embed(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 0] = self.first[0]
        return x


class Weighted(Placed):
    """Made of the parameter before it meets examples, as the state matrix of Mamba."""

    def embed(self, x: Tensor) -> Tensor:
        return torch.exp(-torch.exp(self.first.float().to(x.dtype)) * x.square())


KINDS = [
    Looked,
    LookedUnsqueezed,
    LookedNormalised,
    Distances,
    Masked,
    Rows,
    PlainRows,
    Prefixed,
    Written,
    Weighted,
]


@pytest.mark.parametrize(("examples", "length"), [(6, 5), (6, 6), (3, 6), (7, 4), (10, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_the_same_for_all_examples(kind: type[Placed], examples: int, length: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(11, (examples, length))

    def losses(model: nn.Module) -> Tensor:
        torch.manual_seed(1)
        return model(ids).square().mean((1, 2))

    for source in ("split", "per_example"):
        assert_exact(kind().double(), losses, source=source, rtol=RTOL)


def test_a_table_of_distances_that_multiplies_examples() -> None:
    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 1)

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[1])
            return (x.unsqueeze(1) * self.table(places[:, None] - places + 3)[..., 0]).sum(-1)

    torch.manual_seed(0)
    x = torch.randn(4, 4).double()
    assert_exact(Relative().double(), lambda model: model(x).square().sum(1), source="split", rtol=RTOL)


def test_places_are_told_from_examples() -> None:
    places = torch.arange(6)
    assert are_places(places, 6)
    assert are_places(places + 3, 3)
    assert are_places(places[None] - places[:, None], 6)
    assert are_places(torch.tensor([3, 1, 2]), 2)
    assert not are_places(torch.tensor([3, 1, 2]), 3)
    assert not are_places(torch.zeros(6, 6, dtype=torch.long), 6)  # types of tokens
    assert not are_places(places.expand(6, 6), 6)  # positions of every example
    assert not are_places(torch.randint(9, (5, 4)), 4)  # time first
    assert not are_places(places[None], 6)


class OneRow(nn.Module):
    """Sequences one after the other in a single row, told apart by a mask as long as they are together."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids.reshape(1, -1))
        owner = torch.arange(ids.numel()) // ids.shape[1]
        mixed = nn.functional.scaled_dot_product_attention(x, x, x, owner[:, None] == owner)
        return self.head(x + mixed).view(*ids.shape, -1)


def test_a_mask_does_not_say_where_examples_are() -> None:
    torch.manual_seed(0)
    model, ids = OneRow(), torch.randint(11, (4, 6))
    model(ids).square().sum().backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with Probe(model, source="split") as probe:
        model(ids).square().sum().backward()
        with pytest.raises(ConfigError, match=r"cannot be used group by group in 'scaled_dot_product_attention'"):
            probe.step()
    for parameter, want in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, want)


def test_truth_values_are_no_places() -> None:
    assert not are_places(torch.ones(6, 6, dtype=torch.bool).tril(), 3)
