"""Closed forms of the best batch size under steps bounds: published numbers, a search, sums over steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.extensions.theory.bounds.closed_form import (
    best_over_pole,
    best_over_pole_with_decay,
    noise_factor,
    relative_best,
)
from tests.certified import sato2025
from tests.references import steps_bounds as reference
from tests.references.steps_bounds import DecayBound, PowerBound, StepsBound

CONSTANTS = {"x": sato2025.X, "y": sato2025.Y, "accuracy": sato2025.EPS_MINUS_Z}
MODEST = st.floats(1e-2, 1e2)


def ratio(kind: str, bound: StepsBound) -> float:
    return (
        float(best_over_pole_with_decay(math.log(bound.x / bound.accuracy)))
        if kind == "decay"
        else best_over_pole(bound.power)
    )


def some_bound(kind: str, x: float, y: float, slack: float) -> StepsBound:
    if kind == "decay":
        return DecayBound(x=slack * (1 + x), y=y, accuracy=slack, rate=0.01)
    return PowerBound(x=x, y=y, accuracy=slack, power=0.5 if kind == "root" else 1.0)


def test_the_published_form_has_its_optimum() -> None:
    bound = PowerBound(**CONSTANTS)
    assert bound.pole * ratio("root", bound) == pytest.approx(sato2025.BEST, rel=1e-12)
    assert float(bound.examples(sato2025.BEST)) == pytest.approx(sato2025.FEWEST, rel=1e-12)
    assert bound.steps(50.0) == pytest.approx(sato2025.steps(50.0), rel=1e-12)
    decaying = DecayBound(**CONSTANTS, rate=0.2)
    assert decaying.pole * ratio("decay", decaying) == pytest.approx(sato2025.WITH_DECAY, abs=5e-4)


@pytest.mark.parametrize(("nesterov", "column"), [(True, sato2025.NESTEROV), (False, sato2025.PLAIN)])
def test_how_it_moves_with_momentum(nesterov: bool, column: tuple[str, ...]) -> None:
    for beta, text in zip(sato2025.BETAS, column, strict=True):
        digits = len(text.partition(".")[2])
        assert f"{9 * relative_best(beta, nesterov=nesterov):.{digits}f}" == text


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(["root", "linear", "decay"]), x=MODEST, y=MODEST, slack=MODEST)
def test_the_optimum_is_where_a_search_finds_it(kind: str, x: float, y: float, slack: float) -> None:
    bound = some_bound(kind, x, y, slack)
    # a minimum is flat: where it lies is known to the root of the precision of what is least
    assert bound.pole * ratio(kind, bound) == pytest.approx(bound.best_batch_size, rel=1e-5)


@pytest.mark.parametrize("batch_size", [8, 20, 300])
def test_the_bound_is_the_first_step_that_meets_it(batch_size: int) -> None:
    for power in (0.5, 1.0):
        bound = PowerBound(x=40.0, y=0.7, accuracy=0.3, power=power)
        assert math.ceil(bound.steps(batch_size)) == reference.first_step(40.0, 0.7, 0.05, 0.35, batch_size, power)
    rate = 0.03
    decaying = DecayBound(x=4.0, y=0.7, accuracy=0.3, rate=rate)
    counted = reference.first_step_with_decay(4.0, 0.7, 0.05, 0.35, batch_size, rate)
    # the closed form takes the rate for the logarithm of 1 - rate, and is longer by that much
    assert counted == math.ceil(float(decaying.steps(batch_size)) * rate / -math.log1p(-rate))
    assert counted <= decaying.steps(batch_size)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.99])
def test_the_noise_of_the_momentum_is_a_sum_over_steps(nesterov: bool, beta: float) -> None:
    assert noise_factor(beta, nesterov=nesterov) == pytest.approx(reference.noise_factor(beta, nesterov=nesterov))


def test_weight_decay_moves_it_as_its_square() -> None:
    moved = relative_best(0.9, nesterov=True, weight_decay=0.2) / relative_best(0.9, nesterov=True, weight_decay=0.1)
    assert moved == pytest.approx(0.25)
    assert best_over_pole_with_decay(np.array([0.0, 50.0, 1e6])) == pytest.approx([1.954, 1.018, 1.0016], abs=5e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"beta": 1.0}, r"beta must be in \[0, 1\), got 1"), ({"weight_decay": -0.1}, "weight decay must be")],
)
def test_what_is_outside_its_domain_is_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        relative_best(**({"beta": 0.9} | options), nesterov=False)
