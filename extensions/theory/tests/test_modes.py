"""Closed forms of the noisy quadratic against the covariance taken step by step, and against sampling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.theory.noisy_quadratic import METHODS, NoisyQuadratic, modes_of
from extensions.theory.tests import certified
from tests.references.noisy_quadratic import expected_losses, sampled_losses

SMALL = NoisyQuadratic.power_law(5, noise=0.5)


@settings(deadline=None, max_examples=50)
@given(
    method=st.sampled_from(METHODS),
    lr=st.floats(1e-4, 2.5),
    momentum=st.floats(0.0, 0.99),
    power=st.sampled_from([0.0, 0.5, 1.0]),
    batch_size=st.integers(1, 1000),
    steps=st.integers(1, 120),
    spectrum=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=4),
)
def test_equals_its_slow_twin(
    method: str, lr: float, momentum: float, power: float, batch_size: int, steps: int, spectrum: list[float]
) -> None:
    h = np.array(spectrum)
    model = NoisyQuadratic(curvature=h, noise=0.5 * h + 0.1, start=1.0 + h, count=np.arange(1.0, len(h) + 1))
    momentum = 0.0 if method == "sgd" else momentum
    slow = expected_losses(model, method, momentum, [(lr, batch_size)] * steps, power)
    fast = modes_of(model, method, lr, momentum, power=power)
    # Roots that meet, as those of round numbers do, keep five digits; see below for all others.
    np.testing.assert_allclose(fast.losses(steps, batch_size), slow, rtol=1e-4)
    assert fast.loss(steps, batch_size) == pytest.approx(slow[-1], rel=1e-4)


@pytest.mark.parametrize(
    ("method", "lr", "momentum"), [("sgd", 1.0, 0.0), ("heavy_ball", 1.0, 0.0), ("averaged", 0.5, 0.5)]
)
def test_roots_that_meet(method: str, lr: float, momentum: float) -> None:
    # x = 1 is a root of 0; averaging with 1 - decay = x has one root twice, as heavy ball at critical damping.
    slow = expected_losses(SMALL, method, momentum, [(lr, 4)] * 40)
    np.testing.assert_allclose(modes_of(SMALL, method, lr, momentum).losses(40, 4), slow, rtol=1e-4)
    one = NoisyQuadratic.power_law(1)
    critical = (1.0 - np.sqrt(0.81)) ** 2
    slow = expected_losses(one, "heavy_ball", 0.81, [(critical, 4)] * 200)
    np.testing.assert_allclose(modes_of(one, "heavy_ball", critical, 0.81).losses(200, 4), slow, rtol=1e-4)


@pytest.mark.parametrize(("method", "momentum"), [("sgd", 0.0), ("heavy_ball", 0.5), ("nesterov", 0.5)])
def test_at_the_edge_of_stability_noise_piles_up(method: str, momentum: float) -> None:
    edge = SMALL.largest_lr(momentum=momentum, nesterov=method == "nesterov")
    fast = modes_of(SMALL, method, edge, momentum)
    slow = expected_losses(SMALL, method, momentum, [(edge, 4)] * 50)
    np.testing.assert_allclose(fast.losses(50, 4), slow, rtol=1e-5)
    assert fast.floor(4) == np.inf


def test_floor_is_the_steady_state_risk() -> None:
    h, lr, batch_size = SMALL.curvature, 0.3, 4
    risk = (SMALL.noise * lr / (2 * batch_size * (2 - lr * h))).sum()
    assert modes_of(SMALL, "sgd", lr).floor(batch_size) == pytest.approx(risk)
    for method in METHODS:
        fast = modes_of(SMALL, method, lr, 0.0 if method == "sgd" else 0.8)
        assert fast.loss(100_000, batch_size) == pytest.approx(float(fast.floor(batch_size)))


@pytest.mark.parametrize(
    ("method", "lr", "momentum"),
    [("sgd", -1.0, 0.0), ("sgd", np.nan, 0.0), ("sgd", 0.1, 0.5), ("heavy_ball", 0.1, 1.0), ("adam", 0.1, 0.0)],
)
def test_bad_settings(method: str, lr: float, momentum: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        modes_of(SMALL, method, lr, momentum)


@pytest.mark.parametrize("change", [{"noise": np.ones(2)}, {"curvature": -np.ones(5)}, {"start": np.full(5, np.nan)}])
def test_bad_models(change: dict[str, np.ndarray]) -> None:
    fields = {name: getattr(SMALL, name) for name in ("curvature", "noise", "start", "count")}
    with pytest.raises(ValueError, match="must be"):
        NoisyQuadratic(**(fields | change))


def test_binned_model_has_the_published_initial_loss_and_lower_bound() -> None:
    model = NoisyQuadratic.binned(certified.DIMENSION)
    assert model.count.sum() == certified.DIMENSION
    assert model.initial_loss == pytest.approx(certified.INITIAL_LOSS, abs=0.005)
    for batch_size, bound in certified.LOWER_BOUND.items():
        assert round(model.lower_bound(batch_size, certified.TARGET)) == bound


class HeavyBall:
    """The optimizer itself, as the sampler wants it."""

    def __init__(self, lr: np.ndarray | float, momentum: float) -> None:
        self.lr, self.momentum, self.velocity = lr, momentum, 0.0

    def __call__(self, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        self.velocity = self.momentum * self.velocity - self.lr * gradient
        theta += self.velocity
        return theta


class Averaging:
    def __init__(self, lr: float, decay: float) -> None:
        self.lr, self.decay, self.average = lr, decay, None

    def __call__(self, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        if self.average is None:
            self.average = theta.copy()
        theta -= self.lr * gradient
        self.average = self.decay * self.average + (1 - self.decay) * theta
        return self.average


@pytest.mark.parametrize("steps", [3, 40])
def test_expected_losses_agree_with_sampling(steps: int) -> None:
    model, batch_size, runs = SMALL, 2, 20_000
    cases = {
        "sgd": (modes_of(model, "sgd", 0.4), HeavyBall(0.4, 0.0)),
        "preconditioned": (modes_of(model, "sgd", 0.2, power=0.5), HeavyBall(0.2 * model.curvature**-0.5, 0.0)),
        "momentum": (modes_of(model, "heavy_ball", 0.2, 0.7), HeavyBall(0.2, 0.7)),
        "averaging": (modes_of(model, "averaged", 0.8, 0.8), Averaging(0.8, 0.8)),
    }
    for seed, (name, (fast, update)) in enumerate(cases.items()):
        rng = np.random.default_rng(seed)
        losses = sampled_losses(model.curvature, model.noise, update, batch_size, steps, runs=runs, rng=rng)
        error = losses.std() / np.sqrt(runs)
        assert abs(losses.mean() - fast.loss(steps, batch_size)) < 4 * error, name


def test_grouping_keeps_the_losses() -> None:
    whole = NoisyQuadratic.power_law(3000, power=0.8)
    grouped = whole.grouped()
    assert len(grouped.curvature) < 600
    assert grouped.initial_loss == pytest.approx(whole.initial_loss)
    assert grouped.noise_trace == pytest.approx(whole.noise_trace)
    for method, momentum in (("sgd", 0.0), ("heavy_ball", 0.9), ("averaged", 0.9)):
        few, all_ = (modes_of(model, method, 0.4, momentum).losses(2000, 16) for model in (grouped, whole))
        np.testing.assert_allclose(few, all_, rtol=2e-4)
    flat = NoisyQuadratic(curvature=np.array([0.0, 1.0, 0.0]), noise=np.ones(3), start=np.ones(3), count=np.ones(3))
    assert list(flat.grouped().curvature) == [1.0, 0.0]
    assert list(flat.grouped().count) == [1.0, 2.0]
