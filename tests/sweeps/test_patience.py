"""How long a trial may be silent, and what is told of first steps that crash, exit or hang."""

from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.outlook.cost import Cost, StepCost
from sweeps.running.child import Died
from sweeps.running.patience import LEAST_SECONDS, UNTIMED_SECONDS, patience, timed_apart
from tests.sweeps.alone import ChildHere
from tests.sweeps.simulation import small_sweep


def faulty(act: str):
    workload = Choice(name="tests.sweeps.faulty:workload", options={"acts": {"1": act, "4": act}, "after": 0})
    return small_sweep(workload=workload, batch_sizes=(4,), target=Target(metric="validation_loss", value=0.4))


@pytest.mark.parametrize(
    ("cost", "changes", "seconds"),
    [
        (None, {}, UNTIMED_SECONDS),
        (Cost(), {}, UNTIMED_SECONDS),
        (Cost({"sgd": StepCost(0.001, 0.0, 0.01)}), {}, LEAST_SECONDS),
        (Cost({"sgd": StepCost(0.001, 0.0, 0.01)}), {"compile": True}, UNTIMED_SECONDS),
        (Cost({"sgd": StepCost(1.0, 0.1, 0.01)}), {}, 100 * (1.0 + 0.1 * 256)),
        (Cost({"sgd": StepCost(1.0, 0.1, 60.0)}), {}, 100 * 60.0),
    ],
)
def test_the_longest_planned_step_or_evaluation_counts(cost, changes, seconds):
    assert patience(small_sweep(**changes), cost) == seconds


@pytest.mark.parametrize(
    ("act", "words"),
    [
        pytest.param("segfault", r"first steps.*killed by SIGSEGV: in .*faulty\.py:\d+", marks=pytest.mark.slow),
        pytest.param("exit", "exited with code 3: last words of the workload", marks=pytest.mark.slow),
        pytest.param("hang", r"did not respond for 20 s: in .*faulty\.py:\d+", marks=pytest.mark.slow),
    ],
)
def test_first_steps_that_do_not_come_back_are_one_line(act, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        timed_apart(faulty(act), silence=20.0)
    assert "\n" not in str(refusal.value)


class Ending(ChildHere):
    """A child that ends in a way."""

    def __init__(self, ending: Died) -> None:
        self.ending = ending

    def call(self, *_: Any, **__: Any) -> Any:
        raise self.ending


def test_how_a_child_ended_is_one_line_and_a_hang_none_to_a_dry_run():
    sweep = small_sweep(batch_sizes=(4,))
    with pytest.raises(ConfigError, match=r"first steps.*'noisy_quadratic'.*killed by SIGSEGV: last words") as refusal:
        timed_apart(sweep, child=Ending(Died(-11, None, ["last words"])))
    assert "\n" not in str(refusal.value)
    assert timed_apart(sweep, child=Ending(Died(None, 0.5, [])), give_up=0.5) == Cost()
    with pytest.raises(ConfigError, match=r"did not respond for 20 s"):
        timed_apart(sweep, child=Ending(Died(None, 20.0, [])), silence=20.0, give_up=60.0)


@pytest.mark.slow
def test_a_dry_run_does_not_wait_for_steps_that_hang():
    assert timed_apart(faulty("hang"), give_up=0.5) == Cost()


@pytest.mark.slow
def test_a_first_step_that_does_not_fit_in_memory_is_left_to_the_sweep():
    assert timed_apart(faulty("allocate")) == Cost()
