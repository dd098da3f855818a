"""Examples that come in copies or mix are found, in a plain loop and in its passes."""

import weakref

import pytest
import torch
from torch import Tensor, nn

from cbs.noise_scale import NoiseScaleMeter, separation
from cbs.noise_scale.cut import Call
from cbs.noise_scale.separation import Separation, alike


def test_a_batch_that_is_mixed_up_with_itself_in_reverse_order_is_alike() -> None:
    rows = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    found, correlation = alike(0.7 * rows + 0.3 * rows.flip(0))
    assert found == -1
    assert correlation == pytest.approx(2 * 0.7 * 0.3 / (0.7**2 + 0.3**2), abs=0.1)


def test_a_large_batch_is_known_from_a_part_of_it() -> None:
    rows = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    assert alike(rows) == (0, 0.0)
    assert alike(rows.repeat(2, 1))[0] == 1000


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
