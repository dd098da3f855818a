"""Closed forms of steps bounds against published numbers, numeric minimisation, sums over steps, and training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from cbs.theory.steps_bounds import (
    BoundConstants,
    DecayBound,
    PowerBound,
    StepsBound,
    best_over_pole_with_decay,
    momentum,
    noise_factor,
    relative_best,
    sgd,
)
from tests.certified import sato2025
from tests.references import steps_bounds as reference

CONSTANTS = {"x": sato2025.X, "y": sato2025.Y, "accuracy": sato2025.EPS_MINUS_Z}
PROBLEM = BoundConstants(epsilon=0.5, lr=1e-3, smoothness=1.0, noise=5.0, gap=3.0)
MODEST = st.floats(1e-2, 1e2)


def some_bound(kind: str, x: float, y: float, slack: float) -> StepsBound:
    if kind == "decay":
        return DecayBound(x=slack * (1 + x), y=y, z=0.3, accuracy=slack + 0.3, rate=0.01)
    return PowerBound(x=x, y=y, z=0.3, accuracy=slack + 0.3, power=0.5 if kind == "root" else 1.0)


def test_the_published_form_has_its_optimum() -> None:
    bound = PowerBound(**CONSTANTS)
    assert bound.best_batch_size == pytest.approx(sato2025.BEST, rel=1e-12)
    assert bound.fewest_examples == pytest.approx(sato2025.FEWEST, rel=1e-12)
    assert bound.steps(50.0) == pytest.approx(sato2025.steps(50.0), rel=1e-12)
    assert DecayBound(**CONSTANTS, rate=0.2).best_batch_size == pytest.approx(sato2025.WITH_DECAY, abs=5e-4)


@pytest.mark.parametrize(("nesterov", "column"), [(True, sato2025.NESTEROV), (False, sato2025.PLAIN)])
def test_how_it_moves_with_momentum(nesterov: bool, column: tuple[str, ...]) -> None:
    for beta, text in zip(sato2025.BETAS, column, strict=True):
        digits = len(text.partition(".")[2])
        assert f"{9 * relative_best(beta, nesterov=nesterov):.{digits}f}" == text


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(["root", "linear", "decay"]), x=MODEST, y=MODEST, slack=MODEST)
def test_the_optimum_is_where_a_search_finds_it(kind: str, x: float, y: float, slack: float) -> None:
    bound = some_bound(kind, x, y, slack)
    found = minimize_scalar(
        lambda log: float(np.log(bound.examples(math.exp(log)))),
        bounds=(math.log(bound.pole) + 1e-9, math.log(bound.pole) + 3.0),
        method="bounded",
        options={"xatol": 1e-10},
    )
    # a minimum is flat: where it lies is known to the root of the precision of what is least
    assert bound.best_batch_size == pytest.approx(math.exp(found.x), rel=1e-5)
    assert bound.fewest_examples == pytest.approx(math.exp(found.fun), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(["root", "linear", "decay"]), x=MODEST, y=MODEST, slack=MODEST)
def test_steps_fall_and_are_convex_and_examples_up_to_a_point(kind: str, x: float, y: float, slack: float) -> None:
    bound = some_bound(kind, x, y, slack)
    until = {"root": 9.0, "linear": math.inf, "decay": 4.0}[kind]
    shares = np.linspace(1.05, 15.0, 400)
    steps, examples = bound.steps(bound.pole * shares), bound.examples(bound.pole * shares)
    assert (np.diff(steps) < 0).all()
    assert (np.diff(steps, 2) > 0).all()
    bends = np.diff(examples, 2)
    assert (bends[shares[2:] < until] > 0).all()
    assert (bends[shares[:-2] > until] < 0).all()
    assert np.isinf(bound.steps([0.3 * bound.pole, bound.pole * (1 - 1e-12)])).all()


@pytest.mark.parametrize("batch_size", [8, 20, 300])
def test_the_bound_is_the_first_step_that_meets_it(batch_size: int) -> None:
    for power in (0.5, 1.0):
        bound = PowerBound(x=40.0, y=0.7, z=0.05, accuracy=0.35, power=power)
        step = reference.first_step(40.0, 0.7, 0.05, 0.35, batch_size, power)
        assert math.ceil(bound.steps(batch_size)) == step
    rate = 0.03
    decaying = DecayBound(x=4.0, y=0.7, z=0.05, accuracy=0.35, rate=rate)
    counted = reference.first_step_with_decay(4.0, 0.7, 0.05, 0.35, batch_size, rate)
    # the closed form takes the rate for the logarithm of 1 - rate, and is longer by that much
    exact = float(decaying.steps(batch_size)) * rate / -math.log1p(-rate)
    assert counted == math.ceil(exact)
    assert counted <= decaying.steps(batch_size)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_constants_are_sums_over_steps(nesterov: bool, beta: float, weight_decay: float) -> None:
    constants = {"gap": 3.0, "lr": 1e-4, "smoothness": 1.7, "noise": 0.2, "norm_constant": 1.3}
    problem = BoundConstants(epsilon=5.0 if not weight_decay else 2.9, initial_gradient=0.4, **constants)
    bound = momentum(problem, beta, nesterov=nesterov, weight_decay=weight_decay)
    options: dict[str, Any] = {"beta": beta, "nesterov": nesterov, "weight_decay": weight_decay}
    wanted = reference.momentum_constants(gradient=0.4, **constants, **options)
    assert (bound.x, bound.y, bound.z) == pytest.approx(wanted, rel=1e-9)
    assert noise_factor(beta, nesterov=nesterov) == pytest.approx(reference.noise_factor(beta, nesterov=nesterov))
    assert noise_factor(beta, nesterov=nesterov) >= reference.direction_noise(beta, nesterov=nesterov) - 1e-12


def test_of_sgd_on_one_parameter_the_bound_is_all_but_equal() -> None:
    """There the descent lemma holds with equality: what is lost is the loss that is left at the end."""
    problem = BoundConstants(epsilon=0.3, lr=0.2, smoothness=1.5, noise=0.8, gap=2.0)
    bound, steps = sgd(problem), 200
    mean, left = reference.sgd_mean_squared_norm(curvature=1.5, gap=2.0, lr=0.2, noise=0.8, batch_size=16, steps=steps)
    assert mean == pytest.approx(bound.x / steps * (1 - left) + bound.y / 16, rel=1e-12)
    assert bound.accuracy == pytest.approx(0.09)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_training_keeps_within_the_bound(nesterov: bool, weight_decay: float) -> None:
    rng, steps, batch_size = np.random.default_rng(0), 400, 16
    curvature, start = 1.0 / np.arange(1, 9), np.ones(8)
    gap = 0.5 * float(curvature.sum())
    problem = BoundConstants(
        epsilon=50.0 if weight_decay == 0 else gap * 0.999,
        lr=0.001 if weight_decay else 0.02,
        smoothness=1.0,
        noise=0.3 if weight_decay == 0 else 0.01,
        gap=gap,
        initial_gradient=float(np.linalg.norm(curvature)),
    )
    bound = momentum(problem, 0.9, nesterov=nesterov, weight_decay=weight_decay)
    norms, losses = reference.train(
        curvature, start, noise=problem.noise, batch_size=batch_size, lr=problem.lr, beta=0.9, nesterov=nesterov,
        weight_decay=weight_decay, steps=steps, runs=40, rng=rng,
    )  # fmt: skip
    floor = bound.y / math.sqrt(batch_size) + bound.z
    done = np.arange(1, steps + 1)
    if weight_decay:
        assert (losses <= (1 - weight_decay * problem.lr) ** (done - 1) * bound.x + floor).all()
    else:
        assert (norms.cumsum() / done <= bound.x / done + floor).all()
        # and is no more than a few times too high: a bound of another run would be
        assert bound.x / steps + floor < 4 * norms.mean()


def test_the_lower_bound_is_below_and_reached_without_a_floor() -> None:
    with_floor = PowerBound(x=5.0, y=0.7, z=0.1, accuracy=0.4)
    assert with_floor.lower_bound == pytest.approx(9 * 0.7**2 / (4 * 0.4**2))
    assert with_floor.lower_bound < with_floor.best_batch_size
    assert PowerBound(**CONSTANTS).lower_bound == pytest.approx(sato2025.BEST)


def test_weight_decay_moves_it_as_its_square() -> None:
    ratio = relative_best(0.9, nesterov=True, weight_decay=0.2) / relative_best(0.9, nesterov=True, weight_decay=0.1)
    assert ratio == pytest.approx(0.25)
    assert best_over_pole_with_decay([0.0, 50.0, 1e6]) == pytest.approx([1.954, 1.018, 1.0016], abs=5e-4)


def test_the_steepest_start_stands_in_for_an_unknown_one() -> None:
    assert PROBLEM.steepest == pytest.approx(math.sqrt(2 * 1.0 * 3.0))
    assert BoundConstants(**{**vars(PROBLEM), "initial_gradient": 0.0}).steepest == 0.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PowerBound(x=5.0, y=0.7, z=0.3, accuracy=0.3), "not above Z = 0.3"),
        (lambda: PowerBound(x=0.0, y=0.7, accuracy=0.3), "x must be a finite number above 0, got 0"),
        (lambda: PowerBound(x=5.0, y=math.nan, accuracy=0.3), "y must be"),
        (lambda: DecayBound(x=5.0, y=0.7, accuracy=0.3, rate=1.5), "at most 1, got 1.5"),
        (lambda: DecayBound(x=0.3, y=0.7, accuracy=0.3, rate=0.5), "nothing to do"),
        (lambda: momentum(PROBLEM, 1.0, nesterov=False), r"beta must be in \[0, 1\), got 1"),
        (lambda: momentum(PROBLEM, 0.9, nesterov=False, weight_decay=-0.1), "weight decay must be"),
        (lambda: momentum(PROBLEM, 0.99999, nesterov=True), "there is no bound"),
        (lambda: sgd(BoundConstants(epsilon=0.5, lr=3.0, smoothness=1.0, noise=1.0, gap=1.0)), "must be below 2"),
        (lambda: BoundConstants(epsilon=0.5, lr=1e-3, smoothness=1.0, noise=math.inf, gap=3.0), "noise must be"),
        (lambda: BoundConstants(**{**vars(PROBLEM), "initial_gradient": -1.0}), "initial gradient must be"),
    ],
)
def test_what_is_outside_its_domain_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
