"""Examples that come in copies or mix are found, in a plain loop and in its passes."""

import weakref

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter, separation
from cbs.noise_scale.cut import Call
from cbs.noise_scale.separation import Separation, alike
from tests.kinds import kinds
from tests.noise_scale.loops import EXAMPLES, batch, single, trained


def augmented(step: int, *, apart: bool, spread: float = 0.05) -> Tensor:
    rows = batch(step)[:4]
    rows = rows.repeat(4, 1) if apart else rows.repeat_interleave(4, 0)
    return rows + spread * batch(step + 100)


@pytest.mark.parametrize(("apart", "said"), [(False, "next to them"), (True, "4 places on")])
def test_copies_are_told(apart: bool, said: str) -> None:
    meter, _ = trained(single, of=lambda step: augmented(step, apart=apart))
    assert f"examples resemble those {said} (correlation" in meter.estimate().note
    ids = torch.arange(EXAMPLES) % 4 if apart else torch.arange(EXAMPLES) // 4
    for groups in (ids, *([] if apart else [4])):
        meter, _ = trained(single, of=lambda step: augmented(step, apart=apart), groups=groups)
        assert "examples resemble" not in meter.estimate().note


@pytest.mark.parametrize("examples", kinds([4, 16], [8, 64]))
@pytest.mark.parametrize("numbers", [1, 2, 20])
def test_independent_examples_are_no_copies(examples: int, numbers: int) -> None:
    generator = torch.Generator().manual_seed(examples + numbers)
    for _ in range(100):
        assert alike(torch.randn(examples, numbers, generator=generator)) == (0, 0.0)
        assert alike(torch.randint(2, (examples, numbers), generator=generator).double()) == (0, 0.0)
    assert alike(torch.ones(examples, numbers)) == (0, 0.0)


@pytest.mark.parametrize("lag", [1, 2, 32])
def test_views_are_alike_however_much_they_differ(lag: int) -> None:
    """Half of the variance is the example's: two views have the correlation 1/2. Side by side every second has one."""
    generator = torch.Generator().manual_seed(lag)
    rows = torch.randn(64 // 2, 20, generator=generator)
    rows = rows.unflatten(0, (-1, lag)).repeat(1, 2, 1).flatten(0, 1)
    found, correlation = alike(rows + torch.randn(64, 20, generator=generator))
    assert found == lag
    assert correlation == pytest.approx(0.5 if lag == 32 else 0.25, abs=0.1)


def test_a_batch_that_is_mixed_up_with_itself_in_reverse_order_is_alike() -> None:
    rows = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    found, correlation = alike(0.7 * rows + 0.3 * rows.flip(0))
    assert found == -1
    assert correlation == pytest.approx(2 * 0.7 * 0.3 / (0.7**2 + 0.3**2), abs=0.1)


def test_a_large_batch_is_known_from_a_part_of_it() -> None:
    rows = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    assert alike(rows) == (0, 0.0)
    assert alike(rows.repeat(2, 1))[0] == 1000


@pytest.mark.parametrize("examples", [32, 64])
def test_a_batch_of_two_kinds_one_behind_the_other_is_told(examples: int) -> None:
    rows = torch.randn(examples, 6, generator=torch.Generator().manual_seed(0))
    rows[examples // 2 :] += 1.5
    assert alike(rows)[0] == 1
    assert alike(rows[torch.randperm(examples, generator=torch.Generator().manual_seed(0))]) == (0, 0.0)


def test_large_tensors_are_compared_by_a_part_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(32, 1000, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(separation, "NUMBERS", 32 * 50)
    assert alike(rows) == (0, 0.0)
    found, correlation = alike(rows.repeat(2, 1))
    assert (found, correlation) == (32, pytest.approx(1.0, abs=0.1))


def test_a_pass_is_let_go_before_the_one_after_the_next_is_made() -> None:
    """The logits of a language model are gigabytes: nine passes of them fill a device."""
    alive: list[weakref.ref[Tensor]] = []

    def run(kept: Tensor, others: Tensor) -> list[Call]:
        assert sum(held() is not None for held in alive) <= 2
        rows = torch.where(kept, torch.arange(16), others)[:, None].float()
        alive.append(weakref.ref(rows))
        return [Call("", [rows])]

    Separation().verify(run, [], torch.arange(16)[:, None])
    assert len(alive) == 9


class Bare(nn.Module):
    """A model without modules inside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(torch.randn(64, 64) / 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


def test_the_rounding_of_autocast_is_known_where_there_are_no_modules() -> None:
    meter = NoiseScaleMeter(model := Bare(), source="split")
    for step in range(3):
        x = torch.randn(12, 64, generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        assert meter.step() is not None
        model.zero_grad()


def test_calls_that_come_only_with_other_examples_are_refused() -> None:
    """Also where the pass as it was has none."""
    rows = Call("later", [torch.ones(16, 1)])
    with pytest.raises(ConfigError, match="which modules of the model are called depends"):
        Separation().verify(lambda kept, others: [] if kept.all() else [rows], [], torch.arange(16)[:, None])
