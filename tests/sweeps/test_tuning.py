"""Workers of a sweep under Ray Tune: lost, idle, and as many as asked for."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cbs.trial.store import Store
from sweeps.running import tuning
from sweeps.running.resources import Resources
from sweeps.running.run import MAX_LOSSES, Runs, SweepRun
from sweeps.search.search import Search
from tests.sweeps.simulation import small_sweep


def test_a_ray_whose_workers_are_never_heard_ends_the_sweep_and_one_of_a_cluster_may_take_longer(monkeypatch):
    monkeypatch.setattr(tuning, "check_home", lambda: None)
    monkeypatch.setattr(tuning, "HOME_SECONDS", 0.0)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: 0.0)
    for address, silent, fatal in (None, 300.0, True), (None, 298.0, False), ("auto", 1e6, False):
        run = running([], heard=lambda config, place: None)
        mine = tuning_of(monkeypatch, [run], Resources(address=address))
        monkeypatch.setitem(tuning._runs, 7, mine)
        mine.silent = 1e9
        mine.check_home()
        assert run.fatal is None  # nothing is out
        mine.trials["a"] = mine.trials["b"] = SimpleNamespace(trial_id="t")  # type: ignore[assignment]
        tuning.Queue(7).on_trial_result("a", {"where": [{}]})
        mine.check_home()
        assert run.fatal is None
        mine.silent = silent
        mine.check_home()
        assert bool(run.fatal) is fatal
        assert not fatal or "no worker of Ray was heard for 300 s; see " in run.fatal


def test_a_trial_whose_worker_is_lost_goes_on_elsewhere_ten_times_and_then_ends_the_sweep(tmp_path):
    run = SweepRun(Search(small_sweep()), Store(tmp_path), 1.0)
    for losses in range(MAX_LOSSES + 1):
        assert run.fatal is None, losses
        started = run.next()
        assert started is not None
        run.lost(started[0])
    assert "its worker was lost 11 times" in run.fatal


@pytest.mark.parametrize(("asked", "most"), [(None, 3), (1, 1)])
def test_tune_holds_no_more_trials_than_run_and_one_that_waits(monkeypatch, asked, most):
    run = running(itertools.count())
    monkeypatch.setitem(tuning._runs, 7, tuning_of(monkeypatch, [run], Resources(workers=asked), room=2))
    handed = [tuning.Queue(7).suggest(str(number)) for number in range(5)]
    assert [each is not None for each in handed] == [True] * most + [False] * (5 - most)


def running(trials: Iterable[int], **more: Any) -> Any:
    """A sweep with so many trials left, which are numbered."""
    left = iter(trials)
    search = SimpleNamespace(sweep=small_sweep(), workers=0)
    run = SimpleNamespace(search=search, store=SimpleNamespace(root=Path()), silence=1.0, fatal=None, over=False)

    def following() -> Any:
        number = next(left, None)
        return None if number is None else (SimpleNamespace(to_dict=lambda: number), None)

    def take_in(config: Any, result: Any) -> None:
        run.over = result["last"]

    vars(run).update({"next": following, "take_in": take_in} | more)
    return run


def tuning_of(monkeypatch: pytest.MonkeyPatch, runs: list[Any], resources: Resources, room: int = 1) -> tuning.Tuning:
    monkeypatch.setattr(tuning, "check_placement", lambda *_: room)
    monkeypatch.setattr(Resources, "gpus_of_trial", lambda *_: 0.0)
    return tuning.Tuning(Runs(each for each in runs), resources)


class Told(Exception):
    """A sweep that cannot be chosen."""


def chosen(*runs: Any) -> Iterator[Any]:
    yield from runs
    raise Told


def test_a_worker_that_is_idle_waits_for_the_next_sweep_and_ends_with_the_last(monkeypatch):
    """Tune would end it, and another one takes seconds to start."""
    first, second = running(range(3)), running(range(2))
    mine = tuning_of(monkeypatch, [first, second], Resources(), room=2)
    monkeypatch.setitem(tuning._runs, 7, mine)
    queue, stop = tuning.Queue(7), tuning.StopWhenDone(7)
    assert [queue.suggest(name)["trial"] for name in "abc"] == ["0", "1", "2"]
    assert queue.suggest("x") is None
    queue.on_trial_complete("a", {"status": "REACHED", "last": False})
    assert queue.suggest("x") is None  # the worker takes the trial that waits
    queue.on_trial_complete("b", {"status": "REACHED", "last": False})
    assert queue.suggest("x")["trial"] is None
    assert queue.suggest("y") is None
    assert not stop("x", {})
    queue.on_trial_complete("c", {"status": "REACHED", "last": True})
    assert queue.suggest("d")["trial"] == "0"
    assert mine.run is second
    assert not stop("x", {})  # a worker is free
    assert queue.suggest("e")["trial"] == "1"
    assert [stop("x", {}), stop("d", {})] == [True, False]
    queue.on_trial_complete("x", {"done": True})
    for name, last in ("d", False), ("e", True):
        queue.on_trial_complete(name, {"status": "REACHED", "last": last})
    assert queue.suggest("f") == tuning.Searcher.FINISHED
    assert (mine.runs.run, mine.problem) == (None, None)


@pytest.mark.parametrize("why", ["other workers", "a problem", "fatal"])
def test_a_sweep_that_these_workers_cannot_run_ends_the_experiment(monkeypatch, why):
    first, second = running([0]), running([1], silence=2.0 if why == "other workers" else 1.0)
    mine = tuning_of(monkeypatch, [first], Resources())
    mine.runs = Runs(chosen(first, *([] if why == "a problem" else [second])))
    assert mine.next("a")["trial"] == "0"
    mine.back("a")
    first.over, first.fatal = True, "it fails" if why == "fatal" else None
    assert mine.next("b") == tuning.Searcher.FINISHED
    assert mine.runs.run is {"other workers": second, "a problem": None, "fatal": first}[why]
    assert isinstance(mine.problem, Told) == (why == "a problem")
    assert mine.ended
