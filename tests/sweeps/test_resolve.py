"""What a sweep refuses before its first trial, for all of its optimizers."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import Choice
from sweeps.launching.launch import resolve
from sweeps.spec.axes import Axes
from sweeps.spec.schedule_rule import ScheduleRule
from sweeps.spec.spec import Sweep, prototype
from sweeps.spec.workload import calling_theirs

SWEEP = Sweep(
    name="tiny",
    trial=prototype(workload=Choice(name="noisy_quadratic", options={"dimension": 5})),
    axes=Axes(optimizers=(Choice(name="sgd"), Choice(name="adamw")), batch_sizes=(4,)),
)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"averaging": Choice(name="emma")}, "did you mean ema"),
        ({"averaging": Choice(name="ema")}, "decay or half_life"),
        ({"averaging": Choice(name="lawa", options={"checkpoints": 3})}, "every_examples"),
        ({"schedule": ScheduleRule(name="polynomial", decay_examples=999, options={"power": -1})}, "power"),
        ({"schedule": ScheduleRule(options={"power": 2})}, "'constant'.*its options are: none"),
        (
            {
                "averaging": Choice(name="ema", options={"decay": 0.9}),
                "optimizers": (Choice(name="sgd"), Choice(name="schedule_free")),
            },
            "already averages its weights",
        ),
    ],
)
def test_is_one_clear_line(changes: dict[str, Any], word: str) -> None:
    assert resolve(SWEEP).target is not None
    with pytest.raises(ConfigError, match=word) as caught:
        resolve(SWEEP.replace(**changes))
    assert "\n" not in str(caught.value)


def test_code_that_takes_ctrl_c_gives_it_back():
    before = signal.getsignal(signal.SIGINT)
    for error in (contextlib.nullcontext(), pytest.raises(ConfigError, match=r"called sys\.exit\(3\)")):
        with error, calling_theirs():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not isinstance(error, contextlib.nullcontext):
                sys.exit(3)
        assert signal.getsignal(signal.SIGINT) is before
