"""Learning-rate schedules, in examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.config import Schedule
from cbs.errors import ConfigError, UnknownNameError
from cbs.schedules import SCHEDULES, check_schedule, lr_multiplier


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.25, 0.975, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.975, 1.0, 0.55, 0.1, 0.1]),
        ("cosine", [0.25, 0.975, 1.0, 0.55, 0.1, 0.1]),
    ],
)
def test_worked_points(name: str, expected: list[float]) -> None:
    schedule = Schedule(name=name, warmup_examples=40, decay_examples=240, final_fraction=0.1)
    found = [lr_multiplier(schedule, examples) for examples in (10, 39, 40, 140, 240, 1000)]
    assert found == pytest.approx(expected)


def test_cosine_is_flat_at_both_ends() -> None:
    schedule = Schedule(name="cosine", decay_examples=1000)
    assert lr_multiplier(schedule, 250) == pytest.approx(0.5 * (1 + 2**-0.5))
    assert 1 - lr_multiplier(schedule, 10) < 1e-3
    assert lr_multiplier(schedule, 990) < 1e-3


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    warmup=st.integers(0, 1000),
    decay=st.integers(1, 1000),
    final=st.floats(0, 1),
    examples=st.integers(1, 3000),
)
def test_rises_once_then_falls_within_its_bounds(
    name: str, warmup: int, decay: int, final: float, examples: int
) -> None:
    schedule = Schedule(name=name, warmup_examples=warmup, decay_examples=warmup + decay, final_fraction=final)
    now, later = lr_multiplier(schedule, examples), lr_multiplier(schedule, examples + 1)
    assert 0 < now <= 1 + 1e-12 or (final == 0 and now == pytest.approx(0, abs=1e-12))
    if examples < warmup:
        assert later > now
    else:
        assert later <= now + 1e-12
        assert now >= final - 1e-12


@given(schedule=st.builds(Schedule, warmup_examples=st.integers(0, 500)), batch_size=st.integers(1, 64))
def test_means_the_same_at_every_batch_size(schedule: Schedule, batch_size: int) -> None:
    by_examples = [lr_multiplier(schedule, examples) for examples in range(1, 1001)]
    by_steps = [lr_multiplier(schedule, step * batch_size) for step in range(1, 1000 // batch_size + 1)]
    assert by_steps == by_examples[batch_size - 1 :: batch_size][: len(by_steps)]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="constant, linear, cosine"):
        check_schedule(Schedule(name="cosin"))


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_decay_needs_a_length(name: str) -> None:
    with pytest.raises(ConfigError, match="decay_examples"):
        check_schedule(Schedule(name=name))
    check_schedule(Schedule(name=name, decay_examples=10))
    check_schedule(Schedule())
