from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers import recorder
from cbs.noise_scale.layers.embedding import EmbeddingWeight
from cbs.noise_scale.probe import Probe
from tests.references.per_example import Elementwise, Euclidean, assert_exact

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-12


class Tied(nn.Module):
    """Looks up tokens twice and multiplies with the same table."""

    def __init__(self, vocabulary: int, padding: int | None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 6, padding_idx=padding)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + torch.tanh(self.tokens(ids.flip(1)))
        return self.head(torch.relu(self.inner(x)))


def tied(vocabulary: int, padding: int | None) -> tuple[Tied, Tensor]:
    torch.manual_seed(0)
    return Tied(vocabulary, padding).double(), torch.randint(min(vocabulary, 5), (6, 7))


@pytest.mark.parametrize("geometry", [Euclidean(), Elementwise()], ids=["norms", "values"])
@pytest.mark.parametrize("padding", [None, 0, 3])
@pytest.mark.parametrize("vocabulary", [5, 200])
@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize("held", [0, 2**26])
def test_tied_head_and_two_lookups(
    source: str,
    vocabulary: int,
    padding: int | None,
    geometry: Euclidean,
    held: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "HELD_BYTES", held)
    model, ids = tied(vocabulary, padding)
    assert_exact(
        model,
        lambda model: model(ids).square().flatten(1).sum(1),
        source=source,
        groups=4,
        rtol=RTOL,
        geometries=(geometry,),
    )


def test_a_large_table_is_not_written_out_for_every_example(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(EmbeddingWeight, "dense", lambda self, start, stop: written.append(start))
    model = nn.Sequential(nn.Embedding(200, 4), nn.Linear(4, 3))
    with Probe(model, source="per_example") as probe:
        model(torch.randint(200, (6, 9))).square().sum().backward()
        probe.step()
    assert not written


def test_rows_that_looked_up_the_same_make_the_norm_of_what_is_written_out() -> None:
    torch.manual_seed(0)
    part = EmbeddingWeight(torch.randint(9, (4, 8)), torch.randn(4, 8, 5).double(), 9)
    torch.testing.assert_close(part.square(), part.dense(0, 4).square().sum())
    assert EmbeddingWeight(torch.ones(4, 9, dtype=torch.int64), torch.ones(4, 9, 5), 9).square() is None


@pytest.mark.parametrize("geometry", [Euclidean(), Elementwise()], ids=["norms", "values"])
@pytest.mark.parametrize("vocabulary", [5, 200])
@pytest.mark.parametrize("padding", [None, 0])
def test_a_table_looked_up_once(vocabulary: int, padding: int | None, geometry: Euclidean) -> None:
    torch.manual_seed(0)
    ids = torch.randint(5, (6, 9))
    for source in ("split", "per_example"):
        model = nn.Sequential(nn.Embedding(vocabulary, 4, padding_idx=padding), nn.Linear(4, 3)).double()
        assert_exact(
            model,
            lambda model: model(ids).square().sum((1, 2)),
            source=source,
            groups=3,
            rtol=RTOL,
            geometries=(geometry,),
        )


@pytest.mark.parametrize("ids", [torch.arange(4)[None], torch.tensor([[2, 2, 0, 1]])])
def test_positions_that_are_the_same_for_all_examples(ids: Tensor) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, 3).double()

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x + self.table(ids))

    for source in ("split", "per_example"):
        assert_exact(
            Positions().double(), lambda model: model(x).square().sum((1, 2)), source=source, groups=4, rtol=RTOL
        )


@pytest.mark.parametrize("option", ["scale_grad_by_freq", "sparse"])
def test_options_that_cannot_be_split_are_named(option: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(5, 3, **{option: True}))
    with pytest.raises(ConfigError, match=rf"layer '1' \(Embedding\) has {option}=True.*'accumulation'"):
        Probe(model, source="split")
    assert "forward" not in vars(model[0])
