r"""Cuts of the learning rate against growth of the batch on linear regression, where the risk is known exactly.

Inputs are normal with covariance H, labels have noise of variance 1, and a batch is drawn anew at every step. With M
the second moment of the error, a step of SGD at learning rate eta and batch size B takes it to
:math:`(I - \eta H) M (I - \eta H) + (\eta^2/B)(HMH + tr(HM) H + H)`, whose diagonal in the axes of H is closed.
Normalised SGD, which stands for Adam, divides eta by the root of :math:`E|g|^2`.

A learning rate cut by a and a batch that grows by b at the same examples leave the risk as it is, within a constant
factor, where a b is the same for SGD and a sqrt(b) for normalised SGD; the latter is stable for a >= sqrt(b) alone
(Meterez et al., arXiv 2510.14717).
"""

from collections.abc import Iterator

import numpy as np
import pytest

from cbs.schedules.batch_size import OpenLoop, RunSettings, build_batch_schedule
from cbs.schedules.learning_rate import build_schedule
from cbs.trial.config import Choice, Schedule
from tests.references.adaptive_batch import best_gamma, steps_and_examples

CURVATURE = 1.0 / np.arange(1, 41)
EXAMPLES, BATCH, ALPHA = 20_000, 4, 2.0
COSINE = Schedule(name="cosine", decay_examples=EXAMPLES)
RUN = RunSettings(batch_size=BATCH, examples=EXAMPLES, lr_schedule=COSINE)

Steps = Iterator[tuple[float, int]]  # Learning rate and batch size of every step


def risk(steps: Steps, *, normalised: bool, curvature: np.ndarray = CURVATURE, start: float = 1.0) -> tuple[float, int]:
    """Expected excess risk at the end, and the number of steps."""
    second, count = np.full(len(curvature), start), 0
    for lr, batch_size in steps:
        count += 1
        spread = curvature**2 * second + curvature * ((curvature * second).sum() + 1.0)
        if normalised:
            lr /= np.sqrt((curvature**2 * second).sum() + spread.sum() / batch_size)
        second = (1.0 - lr * curvature) ** 2 * second + lr**2 / batch_size * spread
    return 0.5 * float((curvature * second).sum()), count


def of_rule(name: str, lr: float, **options: float) -> Steps:
    """As the rule has it, with the learning rate of the steps themselves."""
    schedule = build_batch_schedule(Choice(name=name, options=options), RUN)
    assert isinstance(schedule, OpenLoop)
    multiplier, seen = schedule.multiplier or build_schedule(COSINE), 0
    while seen + (stage := schedule.stage(seen)).batch_size <= EXAMPLES:
        seen += stage.batch_size
        yield lr * stage.lr_factor * multiplier(seen), stage.batch_size


def cuts() -> tuple[int, ...]:
    """Examples at which the cosine has fallen by another ``ALPHA``."""
    schedule = build_batch_schedule(Choice(name="seesaw", options={"alpha": ALPHA}), RUN)
    assert isinstance(schedule, OpenLoop)
    return schedule.starts


def of_family(a: float, b: float, lr: float) -> Steps:
    """At the k-th cut the learning rate has fallen by a^k and the batch has grown by b^k."""
    starts, seen = np.array(cuts()[:6]), 0
    while True:
        power = float(np.searchsorted(starts, seen, side="right") - 1)
        size = round(BATCH * b**power)
        if seen + size > EXAMPLES:
            return
        seen += size
        yield lr * a**-power, size


def test_the_risk_is_that_of_a_simulation() -> None:
    curvature, rng = np.array([1.0, 0.4, 0.1]), np.random.default_rng(0)
    stages = [(0.2, 2)] * 15 + [(0.1, 5)] * 10
    error = np.ones((20_000, 3))
    for lr, batch_size in stages:
        inputs = rng.standard_normal((len(error), batch_size, 3)) * np.sqrt(curvature)
        wrong = np.einsum("rbd,rd->rb", inputs, error) - rng.standard_normal((len(error), batch_size))
        error -= lr / batch_size * np.einsum("rb,rbd->rd", wrong, inputs)
    losses = 0.5 * (error**2 @ curvature)
    exact, _ = risk(iter(stages), normalised=False, curvature=curvature)
    assert exact == pytest.approx(losses.mean(), abs=4 * losses.std() / np.sqrt(len(losses)))


@pytest.mark.parametrize("lr", [0.03, 0.3])
def test_seesaw_has_the_risk_of_the_cuts_it_replaces_and_takes_a_third_fewer_steps(lr: float) -> None:
    """Exact where steps are short; at the longest of these the batch is no longer far below the noise scale."""
    grown, steps = risk(of_rule("seesaw", lr, alpha=ALPHA), normalised=True)
    cut, all_steps = risk(of_family(ALPHA, 1.0, lr), normalised=True)
    assert grown == pytest.approx(cut, rel=0.05)
    assert 1 - steps / all_steps == pytest.approx(0.378, abs=0.01)
    smooth, _ = risk(of_rule("constant", lr), normalised=True)
    assert smooth / ALPHA < grown < smooth * ALPHA


@pytest.mark.parametrize("lr", [0.01, 0.03])
def test_growth_in_place_of_cuts_has_their_risk_under_sgd(lr: float) -> None:
    """``smith`` is the family's other end, a = 1 and b = alpha; it goes on cutting for as long as a batch fits."""
    cut, _ = risk(of_family(ALPHA, 1.0, lr), normalised=False)
    for rival in (of_rule("smith", lr, cut=ALPHA), of_family(ALPHA**0.5, ALPHA**0.5, lr)):
        assert risk(rival, normalised=False)[0] == pytest.approx(cut, rel=0.1)


PROGRESS = np.linspace(0.0, 1.0, 20_001) ** 2 * 400.0


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_gamma_of_a_noise_scale_that_grows_as_a_power(power: float) -> None:
    # SVHN in appendix D: 10 sqrt(s) gives 24/25
    gamma = best_gamma(PROGRESS, 10.0 * PROGRESS**power)
    assert gamma == pytest.approx((1 + power) / (1 + power / 2) ** 2, rel=1e-4)
    if power == 0.5:
        assert gamma == pytest.approx(24 / 25, rel=1e-4)


@pytest.mark.parametrize("price", [0.5, 30.0, 4000.0])
def test_the_rule_has_that_gamma_at_every_price_and_every_constant_batch_size_has_1(price: float) -> None:
    noise = 10.0 * np.sqrt(PROGRESS) + 1e-9
    fewest, cheapest = PROGRESS[-1], np.trapezoid(noise, PROGRESS)

    def gamma(batch_size: np.ndarray) -> float:
        steps, examples = steps_and_examples(PROGRESS, noise, batch_size)
        return float((steps / fewest - 1) * (examples / cheapest - 1))

    assert gamma(np.sqrt(price * noise)) == pytest.approx(0.96, rel=1e-3)
    assert gamma(np.full_like(noise, price)) == pytest.approx(1.0, rel=1e-9)
    # no other power of the noise scale does better
    assert all(gamma(noise**other) > 0.96 for other in (0.3, 0.7, 1.0))
