"""Whatever becomes of a child, the one who asked is told, at once; how long it may be silent."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.outlook.cost import Cost, StepCost
from sweeps.running.child import Child, Died, Failed
from sweeps.running.patience import LEAST_SECONDS, UNTIMED_SECONDS, patience, timed_apart
from tests.sweeps import child_functions
from tests.sweeps.alone import ChildHere
from tests.sweeps.simulation import small_sweep

HERE = child_functions.__name__


def gone(pid: int) -> bool:
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_it_answers_again_and_again_and_what_it_says_is_heard():
    heard: list[object] = []
    with Child() as child:
        assert child.call(f"{HERE}:answer", [1], heard=heard.append) == [1]
        assert child.call(f"{HERE}:answer", "two", heard=heard.append) == "two"
    assert heard == ["on it", "on it"]


def test_errors_of_a_person_come_back_as_they_are_and_others_with_their_name():
    with Child() as child:
        with pytest.raises(ConfigError, match="not like this"):
            child.call(f"{HERE}:refuse")
        with pytest.raises(Exception, match="cut off"):
            child.call(f"{HERE}:find_damage")
        with pytest.raises(Failed, match="ZeroDivisionError: division by zero"):
            child.call(f"{HERE}:divide")
        assert child.call(f"{HERE}:answer", 3) == 3


def test_what_takes_long_is_imported_before_anybody_asks_and_is_no_answer():
    with Child("wave") as child:
        assert child.alive
        assert child.call(f"{HERE}:imported") is True
        assert child.call(f"{HERE}:answer", 3) == 3
    assert not child.alive
    with Child() as child:
        assert child.call(f"{HERE}:imported") is False


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("segfault", r"was killed by SIGSEGV: in .*, .*:\d+"),
        ("leave", "exited with code 3: last words"),
        ("kill_itself", "was killed by SIGKILL"),
    ],
)
def test_a_death_says_how_and_where(function, words):
    with Child() as child:
        with pytest.raises(Died, match=words) as death:
            child.call(f"{HERE}:{function}")
        assert not death.value.hung
        assert "\n" not in str(death.value)


@pytest.mark.parametrize("function", ["sleep", "hang_in_c", "stop_itself"])
def test_a_hang_ends_in_time_and_says_where(function, monkeypatch):
    if function == "stop_itself":  # which has no last words, and would be waited for
        monkeypatch.setattr("sweeps.running.child._LAST_WORDS", 0.1)
    else:
        monkeypatch.setattr("sweeps.running.child._LAST_WORDS", 60.0)
    arguments = [1000.0] if function == "sleep" else []
    started = time.monotonic()
    with Child() as child:
        child.call(f"{HERE}:answer", "it has started")
        with pytest.raises(Died, match=r"did not respond for 0\.6 s") as death:
            child.call(f"{HERE}:{function}", *arguments, silence=0.6)
        assert death.value.hung
        assert gone(child.pid)
    assert time.monotonic() - started < 60
    if function != "stop_itself":
        assert f"in {function}, {child_functions.__file__}" in str(death.value)


def test_signs_of_life_keep_it_alive_beyond_the_patience(monkeypatch):
    """Three silent turns before every word, 24 in all: more than the patience, which starts anew with each."""
    monkeypatch.setattr("sweeps.running.child._TURN", 0.1)
    with Child() as child:
        child.call(f"{HERE}:answer", "it has started")
        assert child.call(f"{HERE}:speak", 8, 0.35, silence=2.0) == "done"


def test_closing_ends_it_and_what_it_started():
    child = Child()
    started = child.call(f"{HERE}:start_a_child_that_hangs")
    child.close()
    assert gone(child.pid)
    assert gone(started)


@pytest.mark.parametrize("function", ["sleep", "hang_in_c"])
def test_it_does_not_outlive_the_one_who_asked(function):
    arguments = "1000.0" if function == "sleep" else ""
    code = (
        f"import sys; sys.path[0] = {str(Path(__file__).parents[2])!r}; from sweeps.running.child import Child; "
        f"child = Child(); child.call('{HERE}:answer', 'it has started'); print(child.pid, flush=True); "
        f"child.call('{HERE}:{function}', {arguments})"
    )
    asker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(asker.stdout.readline())
    time.sleep(0.3)
    asker.kill()
    asker.wait()
    assert gone(pid)


def test_it_ends_at_once_where_the_one_who_asks_died_while_it_started():
    code = f"from sweeps.running.child import main; main(0, {os.getppid()})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as started:
        assert started.wait(60) == 1


def test_a_copy_that_a_trial_makes_of_its_process_is_not_heard():
    heard: list[object] = []
    with Child() as child:
        assert child.call(f"{HERE}:forking", heard=heard.append) == 1
        assert child.call(f"{HERE}:answer", 1) == 1
    assert heard == []


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


def test_what_fails_before_anybody_asks_answers_nothing():
    with Child("no.such.module") as child:
        assert child.call(f"{HERE}:answer", 4) == 4


def test_an_hour_in_which_the_machine_slept_is_no_silence(monkeypatch):
    clock = time.monotonic
    with Child() as child:
        child.call(f"{HERE}:answer", "it has started")
        sleep = lambda said: monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600)  # noqa: E731
        assert child.call(f"{HERE}:pause", 0.7, heard=sleep, silence=5.0) == "done"


def test_what_it_writes_is_forgotten_but_for_the_end():
    with Child() as child:
        with pytest.raises(Died, match="exited with code 5: the end") as death:
            child.call(f"{HERE}:chatter")
        assert sum(map(len, death.value.lines)) < 20_000
        assert os.fstat(child._log.fileno()).st_size < 2**21


def test_nothing_in_the_working_folder_is_imported_unasked(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("open('ran', 'w')")
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "__init__.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as where Python was started with -c
    with Child() as child:
        assert child.call(f"{HERE}:answer", 1) == 1
    assert not (tmp_path / "ran").exists()


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
