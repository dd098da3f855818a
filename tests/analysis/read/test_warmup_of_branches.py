"""Warmup of trials that start from a checkpoint: what their parent left of it, or their own."""

from __future__ import annotations

import pytest

from analysis.read.stated import warmup_steps


@pytest.mark.parametrize(
    ("parent", "steps"),
    [
        (None, 20.0),
        ({"examples": 0, "warmup_examples": 0}, 20.0),
        ({"examples": 60, "warmup_examples": 0}, 5.0),
        ({"examples": 800, "warmup_examples": 0}, 0.0),
        ({"examples": 800, "warmup_examples": 40}, 10.0),
    ],
)
def test_what_is_left_of_the_warmup(parent: dict[str, int] | None, steps: float) -> None:
    config = {"batch_size": 4, "schedule": {"warmup_examples": 80}} | ({} if parent is None else {"parent": parent})
    assert warmup_steps(config) == steps
