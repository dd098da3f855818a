"""Groups of examples that belong together: how they are formed, and both levels of their noise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.model_cells import EXACT, TOLD
from benchmarks.model_cells import run as run_cell
from benchmarks.zoo_loops import GROUPS
from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter, grouping
from cbs.noise_scale.grouping import norms
from cbs.noise_scale.moments import solve_moments
from cbs.noise_scale.probe import Probe
from tests.kinds import kinds

EXAMPLES, MEMBERS = 12, 3
LAYOUTS = {
    "side by side": torch.arange(EXAMPLES) // MEMBERS,
    "one after the other": torch.arange(EXAMPLES) % (EXAMPLES // MEMBERS),
    "anywhere": (torch.arange(EXAMPLES) // MEMBERS)[
        torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(0))
    ],
}


class Everything(nn.Module):
    """Layers of every kind: known ones, some that run group by group, and shared parameters that meet examples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.places = nn.Parameter(torch.randn(1, 4, 6))
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.layer_norm = nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.lstm = nn.LSTM(6, 6, batch_first=True)
        self.scale = nn.Parameter(torch.randn(6))
        self.head = nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids) + self.places
        h = torch.cat([self.token.expand(len(ids), -1, -1), h], 1)
        h = self.layer_norm(self.norm(self.conv(h.transpose(1, 2))).transpose(1, 2))
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = self.lstm(h)[0] * self.scale
        return self.head(h.mean(1))


def loop(model: nn.Module, loss: Callable[[Tensor], Tensor], ids: Tensor) -> list[Tensor]:
    """Gradients of single examples, ``[examples, *parameter.shape]``."""
    rows = []
    for row in ids:
        rows.append(torch.autograd.grad(loss(model(row[None])).sum(), list(model.parameters())))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def truth(own: list[Tensor], groups: Tensor, parts: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Signal, noise of a group and noise within a group of every parameter tensor.

    Args:
        own: gradients of single examples.
        groups: of every example.
        parts: groups of every part of the batch.
    """
    found = []
    for rows in own:
        rows = rows.flatten(1)
        means = torch.stack([rows[groups == group].mean(0) for group in groups.unique()])
        whole = means.mean(0)
        at_parts = torch.stack([means[part].mean(0).square().sum() for part in parts]).mean()
        signal, noise = solve_moments(at_parts, len(means) / len(parts), whole.square().sum(), len(means))
        around = torch.stack([(rows[groups == group] - mean).square().sum() for group, mean in enumerate(means)])
        found.append(torch.stack([signal, noise, around.sum() / (len(rows) - len(means))]))
    return torch.stack(found).unbind(1)


def measured(source: str, groups: Any, ids: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Everything().double()
    with Probe(model, source=source, groups=groups) as probe:
        (loss(model(ids)).mean()).backward()
        found = probe.step()
    assert probe.caveat == ""
    return model, found


def squares(output: Tensor) -> Tensor:
    return output.sin().square().sum(1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_moments_are_those_of_a_loop_over_groups(source: str, layout: str) -> None:
    groups = LAYOUTS[layout]
    ids = torch.randint(7, (EXAMPLES, 4), generator=torch.Generator().manual_seed(1))
    model, found = measured(source, groups, ids, squares)
    parts = [[0, 1], [2, 3]] if source == "split" else [[0], [1], [2], [3]]
    signal, noise, within = truth(loop(model, squares, ids), groups, parts)
    torch.testing.assert_close(found["l2"].signal, signal, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(found["l2"].noise, noise, rtol=1e-8, atol=1e-12)
    assert (found["l2"].sizes.big, found["l2"].sizes.members) == (4, MEMBERS)
    if source == "per_example":
        torch.testing.assert_close(found["within"].noise, within, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(found["between"].noise, noise - within / MEMBERS, rtol=1e-8, atol=1e-12)
    plain = torch.autograd.grad(squares(model(ids)).mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-12)


def run(source: str, groups: Any, steps: int, *, between: float, within: float, micro: int = 1) -> NoiseScaleMeter:
    """Linear regression at a point where gradients are the inputs: of mean ``(1, 0, 0)`` and known variance."""
    torch.manual_seed(3)
    model = nn.Linear(3, 1, bias=False).double()
    meter = NoiseScaleMeter(model, source=source, groups=groups, every=1, window=None)
    generator = torch.Generator().manual_seed(4)
    for _ in range(steps):
        for _ in range(micro):
            shared = torch.randn(4, 1, 3, dtype=torch.double, generator=generator) * (between / 3) ** 0.5
            own = torch.randn(4, MEMBERS, 3, dtype=torch.double, generator=generator) * (within / 3) ** 0.5
            rows = (torch.eye(3, dtype=torch.double)[0] + shared + own).flatten(0, 1)
            (model(rows).mean() / micro).backward()
        meter.step()
        model.zero_grad()
    return meter


@pytest.mark.parametrize(
    ("source", "between", "within"), kinds([("split", 2.0, 6.0)], [("split", 6.0, 0.6), ("per_example", 2.0, 6.0)])
)
def test_both_levels_are_in_their_intervals(source: str, between: float, within: float) -> None:
    meter = run(source, MEMBERS, 600, between=between, within=within)
    found = meter.nested()
    for estimate, true in (
        (found.groups, between + within / MEMBERS),
        (found.between, between),
        (found.within, within),
        (meter.estimate(), between + within / MEMBERS),
    ):
        assert estimate.low < true < estimate.high
        assert estimate.high / estimate.low < 2.2
    assert "groups of 3 examples" in str(meter.estimate())
    assert str(found).count("[") == 3
    again = NoiseScaleMeter(nn.Linear(3, 1, bias=False).double(), source=source, groups=MEMBERS, window=None)
    again.load_state_dict(meter.state_dict())
    # what a batch shares is tested anew
    assert again.nested() == replace(found, groups=replace(found.groups, unseen=1.0))


def test_without_groups_it_is_read_far_too_low() -> None:
    found = run("per_example", 1, 200, between=6.0, within=0.6).estimate()
    assert found.high < 6.2 * MEMBERS / 1.5


def test_micro_batches_are_counted_in_groups() -> None:
    meter = run("accumulation", MEMBERS, 500, between=2.0, within=6.0, micro=2)
    found = meter.estimate()
    assert found.low < 4.0 < found.high
    assert "groups of 3 examples" in str(found)
    with pytest.raises(ConfigError, match="the noise within groups was not measured"):
        meter.nested()


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (5, "12 examples of a forward pass do not divide into groups of 5"),
        (torch.arange(4), r"group ids have the shape \[4\], but the forward pass has 12 examples"),
        (torch.tensor([0] * 5 + [1] * 7), "groups have 5 to 7 examples: all must have the same size"),
    ],
)
@pytest.mark.parametrize("source", ["split", "accumulation"])
def test_what_are_no_groups_is_one_line(groups: Any, said: str, source: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(source, groups, 1, between=1.0, within=1.0, micro=2)


TOGETHER = [name for name, entry in GROUPS.items() if entry.group is not None]


@pytest.mark.parametrize("name", TOGETHER)
def test_the_losses_of_groups_add_up_to_that_of_the_batch(name: str) -> None:
    entry = GROUPS[name]
    torch.manual_seed(0)
    model, batch = entry.build(), entry.batch(3, torch.Generator().manual_seed(1))
    assert entry.group is not None
    rows = entry.group(len(next(iter(batch.values()))))
    assert rows.unique().tolist() == [0, 1, 2]
    alone = torch.stack([entry.loss(model, entry.take(batch, [group])) for group in range(3)])
    torch.testing.assert_close(entry.shares(batch) @ alone, entry.loss(model, batch))


def test_a_number_is_as_good_as_ids() -> None:
    ids = torch.randint(7, (EXAMPLES, 4), generator=torch.Generator().manual_seed(1))
    (_, one), (_, other) = (measured("split", groups, ids, squares) for groups in (MEMBERS, LAYOUTS["side by side"]))
    for name in ("l2", "within"):
        torch.testing.assert_close(one[name].noise, other[name].noise)
    _, third = measured("split", lambda args, kwargs: LAYOUTS["side by side"], ids, squares)
    torch.testing.assert_close(one["l2"].noise, third["l2"].noise)


def test_a_pass_of_one_group_is_one_example() -> None:
    meter = run("split", 12, 2, between=1.0, within=1.0, micro=2)
    assert meter.estimate().steps == 2
    assert meter.nested().members == 12


@pytest.mark.parametrize("groups", [0, True, 2.5, torch.zeros(2, 2)])
def test_what_groups_may_be(groups: Any) -> None:
    with pytest.raises(ConfigError, match="number of consecutive examples in a group"):
        NoiseScaleMeter(nn.Linear(2, 1), groups=groups)


@pytest.mark.parametrize("piece", [1, 20, 10**9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_norms_of_examples_do_not_depend_on_the_pieces(
    piece: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "PIECE", piece)
    generator = torch.Generator().manual_seed(0)
    one, other = ((3 * torch.randn(12, 7, dtype=torch.cfloat, generator=generator)) for _ in range(2))
    one, other = (each.to(dtype) if dtype.is_complex else each.real.to(dtype) for each in (one, other))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for subtracted, left in ((None, one.to(wide)), (other, one.to(wide) - other.to(wide))):
        wanted = [float(left[2 * at : 2 * at + 2].abs().square().sum().sqrt()) for at in range(6)]
        assert norms(one, 6, subtracted).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["answers that share an advantage", "augmentations side by side"])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_what_belongs_together_is_measured_or_told(name: str, source: str) -> None:
    assert run_cell(f"{name}, groups= given", "eager", source).kind == EXACT
    assert run_cell(name, "eager", source).kind == TOLD
