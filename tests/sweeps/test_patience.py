"""How long a trial may be silent, and what is told of first steps that crash, exit or hang."""

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.outlook.cost import Cost
from sweeps.running.patience import timed_apart
from tests.sweeps.simulation import small_sweep


def faulty(act: str):
    workload = Choice(name="tests.sweeps.faulty:workload", options={"acts": {"1": act, "4": act}, "after": 0})
    return small_sweep(workload=workload, batch_sizes=(4,), target=Target(metric="validation_loss", value=0.4))


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


@pytest.mark.slow
def test_a_dry_run_does_not_wait_for_steps_that_hang():
    assert timed_apart(faulty("hang"), give_up=0.5) == Cost()


@pytest.mark.slow
def test_a_first_step_that_does_not_fit_in_memory_is_left_to_the_sweep():
    assert timed_apart(faulty("allocate")) == Cost()
