"""The hyperbola of steps and examples: worked points and identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.theory import pareto

positive = st.floats(1e-3, 1e9)


@pytest.mark.parametrize(("ratio", "steps", "examples"), [(0.25, 5.0, 1.25), (1.0, 2.0, 2.0), (4.0, 1.25, 5.0)])
def test_worked_points(ratio: float, steps: float, examples: float) -> None:
    assert pareto.steps_to_target(ratio * 64, 100, 64) == pytest.approx(100 * steps)
    assert pareto.examples_to_target(ratio * 64, 6400, 64) == pytest.approx(6400 * examples)


def test_worked_example() -> None:
    critical = pareto.critical_batch_size(100, 1e5)
    assert critical == pytest.approx(1000)
    assert pareto.steps_to_target(250, 100, critical) == pytest.approx(500)
    assert pareto.examples_to_target(250, 1e5, critical) == pytest.approx(1.25e5)
    assert pareto.speed(1000, critical) == pytest.approx(0.5)


@given(batch_size=positive, min_steps=positive, min_examples=positive)
def test_points_lie_on_the_hyperbola(batch_size: float, min_steps: float, min_examples: float) -> None:
    critical = float(pareto.critical_batch_size(min_steps, min_examples))
    steps = float(pareto.steps_to_target(batch_size, min_steps, critical))
    examples = float(pareto.examples_to_target(batch_size, min_examples, critical))
    assert examples == pytest.approx(steps * batch_size, rel=1e-9)
    assert steps > 0 < examples
    share = critical / batch_size
    if 1e-4 < share < 1e4:  # beyond, S - S_min or E - E_min is lost to rounding
        assert (steps / min_steps - 1) * (examples / min_examples - 1) == pytest.approx(1, rel=1e-6)


def test_arrays() -> None:
    batch_sizes = np.array([1.0, 10.0, 100.0])
    assert pareto.steps_to_target(batch_sizes, 5, 10).tolist() == [55.0, 10.0, 5.5]
    assert pareto.speed(batch_sizes, 0.0).tolist() == [1.0, 1.0, 1.0]
