"""Batch size and learning rate that grow together: the arithmetic of the papers, and what cannot be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.schedules.batch_size import build_batch_schedule
from tests.schedules.batch_size import test_theory
from tests.schedules.batch_size.test_in_training import assert_resumed_bitwise
from tests.schedules.batch_size.test_tables import built, run_of


def test_growth_has_stages_that_grow_by_delta_and_stops_the_learning_rate_at_the_cap() -> None:
    schedule = built("growth", run_of(16, 10**6), first_examples=1000, cap=100)
    assert schedule.starts[:4] == (0, 1000, 3000, 7000)
    sizes, factors = zip(*((stage.batch_size, stage.lr_factor) for stage in schedule.stages), strict=True)
    assert sizes == (16, 32, 64, 100)
    np.testing.assert_allclose(factors, [1, 1.4, 1.96, 1.96])
    steps = built("growth", run_of(16, 7000), first_examples=1000, cap=None).steps(7000)
    assert len(set(steps)) <= 2  # guideline of the paper: as many steps in every stage
    longer = built("growth", run_of(16, 10**6), first_examples=1000, stage_power=1.5)
    np.testing.assert_allclose(longer.starts[:4], [0, 1000, 1000 * (1 + 2**1.5), 1000 * (1 + 2**1.5 + 8)], atol=1)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("growth", {"first_examples": 100, "gamma": 1.5}, "diverges"),
        ("growth", {"first_examples": 100, "delta": 2, "gamma": 2}, "diverges"),
        ("growth", {"first_examples": 4000}, "the whole budget"),
        ("growth", {"first_examples": 100, "cap": 4}, "at least 8"),
        ("growth_by_gradient", {"first_norm": 0.5, "gamma": 1.5}, "diverges"),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        build_batch_schedule(Choice(name=name, options=options), run_of(8, 4000))
    assert len(str(error.value).splitlines()) == 1


def test_growth_by_the_gradient_takes_the_steps_of_the_theory_and_sees_the_truth() -> None:
    test_theory.test_a_rule_that_looks_takes_the_steps_of_the_theory_and_sees_the_truth("growth_by_gradient")


@pytest.mark.slow
def test_resuming_is_bitwise(tmp_path: Path) -> None:
    assert_resumed_bitwise(tmp_path, "growth_by_gradient", 60, {"first_norm": 2.0})
