"""One batch against a loop over examples, in words."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.small_batch import CellSums

EXAMPLES = 5


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.drop(self.inner(self.table(ids)).tanh()))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Tokens()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(7, (EXAMPLES, 4), generator=torch.Generator().manual_seed(1))


def mean_loss(model: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids).mT, ids)


def of_seen_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids).mT, torch.where(ids < 3, -100, ids))


def contrastive(model: nn.Module, ids: Tensor) -> Tensor:
    features = model(ids).mean(1)
    return cross_entropy(features @ features.T, torch.arange(len(ids)))


def balanced(model: nn.Module, ids: Tensor) -> Tensor:
    """A term in the square of a mean over all examples."""
    return mean_loss(model, ids) + model(ids).softmax(-1).mean((0, 1)).square().sum()


@pytest.mark.parametrize("source", ["split", "per_example", "auto"])
def test_agreement(model: nn.Module, ids: Tensor, source: str) -> None:
    found = NoiseScaleMeter.check(model, mean_loss, ids, source=source)
    assert found.ok
    assert not found.coupled
    assert found.weights == pytest.approx([1.0] * EXAMPLES, abs=1e-4)
    assert str(found).endswith(f"agrees with a loop over {EXAMPLES} examples in every layer (3)")
    assert [layer.layer for layer in found.layers] == ["table", "inner", "head"]
    json.dumps(found.to_json(), allow_nan=False)


def test_ignored_tokens_are_weights_and_no_coupling(model: nn.Module, ids: Tensor) -> None:
    ids = torch.cat([torch.tensor([[0, 0, 0, 6]]), ids[1:]])
    found = NoiseScaleMeter.check(model, of_seen_tokens, ids)
    seen = (ids >= 3).sum(1).float()
    assert not found.ok
    assert not found.coupled
    assert found.weights == pytest.approx((seen / seen.mean()).tolist(), rel=1e-3)
    assert "examples weigh" in str(found)
    assert "agrees" not in str(found)


def hardest(model: nn.Module, ids: Tensor) -> Tensor:
    """The hardest example counts; every one alone is the hardest."""
    return cross_entropy(model(ids).mT, ids, reduction="none").mean(1).max()


def over_the_mean(model: nn.Module, ids: Tensor) -> Tensor:
    """Policy gradients with an advantage over the mean reward, which is that of the word."""
    reward = ids[:, :1].float() + torch.arange(len(ids))[:, None]
    return (cross_entropy(model(ids).mT, ids, reduction="none") * (reward - reward.mean())).mean()


def test_groups_of_examples_are_compared_with_a_loop_over_groups(model: nn.Module) -> None:
    ids = torch.randint(7, (8, 4), generator=torch.Generator().manual_seed(2))

    def of_pairs(model: nn.Module, ids: Tensor) -> Tensor:
        reward = ids[:, 0].float().view(-1, 2)
        advantage = (reward - reward.mean(1, keepdim=True)).flatten()
        return (cross_entropy(model(ids).mT, ids, reduction="none").mean(1) * advantage).mean()

    for source in ("split", "per_example"):
        found = NoiseScaleMeter.check(model, of_pairs, ids, source=source, groups=2)
        assert found.ok, str(found)
        assert "agrees with a loop over 4 groups of 2 examples" in str(found)


@pytest.mark.parametrize("loss", [contrastive, balanced, hardest, over_the_mean])
def test_losses_that_couple_examples(model: nn.Module, ids: Tensor, loss: object) -> None:
    found = NoiseScaleMeter.check(model, loss, ids, count=lambda args, kwargs: EXAMPLES)
    assert found.coupled
    assert not found.ok
    assert "the loss couples examples" in str(found)
    assert "use the source 'accumulation'" in str(found)


def test_a_layer_that_is_measured_wrongly_is_named(
    model: nn.Module, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CellSums.put

    def wrong(self: CellSums, cell: int, gradients: list[Tensor | None]) -> None:
        place = next(place for place, (name, _) in enumerate(model.named_parameters()) if name == "inner.weight")
        right(self, cell, [2 * slope if index == place else slope for index, slope in enumerate(gradients)])

    monkeypatch.setattr(CellSums, "put", wrong)
    monkeypatch.setattr(CellSums, "wrong", lambda *_: None)
    found = NoiseScaleMeter.check(model, mean_loss, ids, source="per_example")
    assert not found.ok
    assert not any(layer.agrees for layer in found.layers if layer.layer == "inner")
    assert "'inner' (" in str(found)


def test_what_cannot_be_watched_is_said_with_its_reason(ids: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 7))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return cross_entropy(model(ids), ids[:, 0])

    found = NoiseScaleMeter.check(model, loss, ids)
    assert not found.ok
    assert found.source == "accumulation"
    assert "mixes the examples of a batch" in str(found)


@pytest.mark.parametrize(
    ("batch", "source", "said"),
    [
        (torch.zeros(1, 4, dtype=torch.long), "auto", "at least two examples"),
        (torch.zeros(4, 4, dtype=torch.long), "accumulation", "nothing to check"),
    ],
)
def test_misuse_is_one_line(model: nn.Module, batch: Tensor, source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NoiseScaleMeter.check(model, mean_loss, batch, source=source)
    assert "forward" not in vars(model.inner)


def test_others_that_are_only_missed_when_one_is_gone_are_coupled(model: nn.Module, ids: Tensor) -> None:
    """The half of the examples with the smaller losses; every one alone counts."""

    def trimmed(model: nn.Module, ids: Tensor) -> Tensor:
        losses = cross_entropy(model(ids).mT, ids, reduction="none").mean(1)
        return losses.sort().values[: (len(ids) + 1) // 2].mean()

    found = NoiseScaleMeter.check(model, trimmed, ids)
    assert found.coupled
    assert not found.ok


def test_a_loss_that_one_example_does_not_define_is_looked_at_by_what_its_absence_changes(
    model: nn.Module, ids: Tensor
) -> None:
    def scaled(model: nn.Module, ids: Tensor) -> Tensor:
        output = model(ids)
        return (output / (output - output.mean(0)).square().mean(0).sqrt()).square().mean()

    def normed(model: nn.Module, ids: Tensor) -> Tensor:
        targets = ids.float() + torch.arange(len(ids))[:, None] / 7
        targets = (targets - targets.mean()) / targets.mean(1).std(correction=0)
        return (model(ids).mean(2) - targets).square().mean()

    def undefined_alone(model: nn.Module, ids: Tensor) -> Tensor:
        return mean_loss(model, ids) / (0 if len(ids) == 1 else 1)

    for loss in (scaled, normed):
        found = NoiseScaleMeter.check(model, loss, ids)
        assert found.coupled
        assert not found.alone
        assert "the differences that single examples make" in str(found)
    assert NoiseScaleMeter.check(model, undefined_alone, ids).ok


def test_examples_that_a_selection_leaves_out_weigh_nothing_and_those_without_a_gradient_do(model: nn.Module) -> None:
    ids = torch.randint(7, (8, 4), generator=torch.Generator().manual_seed(2))
    kept = (ids % 2 == 0)[:, 0]
    assert 4 <= kept.sum() < 8

    def of_kept(model: nn.Module, ids: Tensor) -> Tensor:
        kept = ids[:, 0] % 2 == 0
        return cross_entropy(model(ids)[kept].mT, ids[kept])

    def over_all(model: nn.Module, ids: Tensor) -> Tensor:
        return (cross_entropy(model(ids).mT, ids, reduction="none").mean(1) * (ids[:, 0] % 2 == 0)).mean()

    found = NoiseScaleMeter.check(model, of_kept, ids)
    assert found.weights == pytest.approx((kept / kept.float().mean()).tolist(), abs=1e-3)
    assert "agrees" not in str(found)
    assert NoiseScaleMeter.check(model, over_all, ids).ok


def test_two_examples_are_enough(model: nn.Module, ids: Tensor) -> None:
    assert NoiseScaleMeter.check(model, mean_loss, ids[:2]).ok


def test_nothing_is_left_behind(model: nn.Module, ids: Tensor) -> None:
    mean_loss(model, ids).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    NoiseScaleMeter.check(model, mean_loss, ids)
    assert model.training
    assert model.drop.training
    assert all(torch.equal(parameter.grad, kept) for parameter, kept in zip(model.parameters(), before, strict=True))
    assert "forward" not in vars(model.inner)
