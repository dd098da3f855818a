"""A worker's trials: passes that memory does not hold are halved, and several processes train as one does."""

import ast
import dataclasses
import importlib
import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from cbs.errors import CbsError
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.store import Store
from cbs.trial.target import Target
from cbs.workloads import Workload, build_workload
from sweeps.running import worker
from sweeps.running.child import Died
from sweeps.running.worker import TOO_LARGE, PassSizes, Place, Setup, Worker
from tests import fresh
from tests.kinds import kinds

ROOT = Path(__file__).resolve().parents[2]

CONFIG = TrialConfig(
    workload=Choice(name="tests.sweeps.test_worker:narrow", options={"holds": 5}),
    optimizer=Choice(name="sgd", options={"momentum": 0.5}),
    lr=0.05,
    batch_size=24,
    seed=5,
    target=Target(metric="validation_loss", value=0.2),
    max_steps=400,
    probe=None,
)


def narrow(holds: int, where: str = "step") -> Workload:
    """The noisy quadratic on a device whose memory holds so many examples at a time.

    Args:
        holds: examples.
        where: else memory is full: ``"step"`` in a pass, ``"validation"``, or ``"late"`` from the fifth step on; with
            ``"error"`` every pass fails, with ``"half"`` it has losses of half of its examples.
    """
    base = build_workload(Choice(name="noisy_quadratic", options={"dimension": 30}))
    losses, validate, passes = base.example_losses, base.validate, [0]

    def example_losses(model: Any, batch: torch.Tensor) -> torch.Tensor:
        passes[0] += 1
        if where == "error":
            raise ValueError("on purpose\nsecond line")
        if where == "half":
            return losses(model, batch)[: len(batch) // 2]
        if len(batch) > holds and (where == "step" or (where == "late" and passes[0] > 5)):
            raise torch.OutOfMemoryError("no room on the device")
        return losses(model, batch)

    def full(model: Any) -> float:
        if where == "validation":
            raise torch.OutOfMemoryError("no room on the device")
        return validate(model)

    base.example_losses, base.validate = example_losses, full  # type: ignore[method-assign]
    return base


def tight(megabytes: int) -> Workload:
    """The noisy quadratic, each example of which takes 4 MB, in a process that gets so much more than it has."""
    base = build_workload(Choice(name="noisy_quadratic", options={"dimension": 30}))
    losses, stream = base.example_losses, base.training_stream

    def training_stream(generator: torch.Generator) -> Any:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return stream(generator)

    def example_losses(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return losses(model, batch) + torch.zeros(len(batch), 2**20).sum(1)

    base.training_stream, base.example_losses = training_stream, example_losses  # type: ignore[method-assign]
    return base


def mortal(folder: str) -> Workload:
    """The noisy quadratic, whose second rank kills itself in its 60th pass while the folder holds a file ``flag``; it
    leaves a checkpoint at every evaluation, and a line for every pass."""
    base = build_workload(Choice(name="noisy_quadratic", options={"dimension": 30}))
    losses, passes = base.example_losses, [0]
    Checkpoint.due = lambda self: True  # type: ignore[method-assign]

    def example_losses(model: Any, batch: torch.Tensor) -> torch.Tensor:
        passes[0] += 1
        flag, rank = Path(folder, "flag"), torch.distributed.get_rank()
        with open(Path(folder, f"passes-{rank}"), "a", encoding="utf-8") as file:
            file.write("pass\n")
        if rank == 1 and passes[0] == 60 and flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return losses(model, batch)

    base.example_losses = example_losses  # type: ignore[method-assign]
    return base


def meddling() -> Workload:
    """The noisy quadratic, that sets up torch for itself at every step."""
    base = build_workload(Choice(name="noisy_quadratic", options={"dimension": 30}))
    losses = base.example_losses

    def example_losses(model: Any, batch: torch.Tensor) -> torch.Tensor:
        torch.backends.cudnn.benchmark = True
        return losses(model, batch)

    base.example_losses = example_losses  # type: ignore[method-assign]
    return base


class HereAndNow:
    """In place of a child: its functions run in this process."""

    started = 0

    def __init__(self) -> None:
        HereAndNow.started += 1

    def call(self, function: str, *args: Any, heard: Any, silence: float) -> Any:
        module, _, name = function.partition(":")
        said = type("Channel", (), {"say": staticmethod(heard)})
        return getattr(importlib.import_module(module), name)(said, *args)

    def kill(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(worker, "Child", HereAndNow)
    monkeypatch.setattr(HereAndNow, "started", 0)
    return Setup(store=str(tmp_path), path=".", threads=1, prune_factor=None, silence=60.0)


def whole(config: TrialConfig) -> TrialConfig:
    """The same trial on a device that holds everything."""
    return dataclasses.replace(config, workload=Choice(name="noisy_quadratic", options={"dimension": 30}))


def test_passes_are_halved_until_memory_holds_them_and_the_numbers_stay(setup):
    answer = Worker(setup).run(CONFIG.to_dict(), None)
    assert answer == {
        "status": "REACHED",
        "notes": [f"{CONFIG.trial_id}: passes of 3 examples, as more do not fit into memory"],
    }
    found, alone = Store(setup.store).load(CONFIG.trial_id), run_trial(whole(CONFIG))
    assert (found.micro_batch_size, alone.micro_batch_size) == (3, None)
    assert found.steps_to_target == pytest.approx(alone.steps_to_target, rel=1e-5)
    np.testing.assert_allclose(found.steps["train_loss"], alone.steps["train_loss"], rtol=1e-4, atol=1e-5)
    # 24, 12 and 6 examples did not fit; each was tried in a process of its own
    assert HereAndNow.started == 4
    assert list(json.loads(Path(setup.store, TOO_LARGE).read_text()).values()) == [{"24": 6}]
    # what was found is as if 3 had been asked for
    asked = run_trial(dataclasses.replace(whole(CONFIG), micro_batch_size=3))
    np.testing.assert_array_equal(found.steps["train_loss"], asked.steps["train_loss"])


def test_the_next_trial_starts_with_what_fits_and_ends_where_it_would_have_alone(setup, tmp_path):
    config = dataclasses.replace(CONFIG, batch_size=40, lr=0.07)
    Worker(setup).run(CONFIG.to_dict(), None)
    HereAndNow.started = 0
    Worker(setup).run(config.to_dict(), None)
    assert HereAndNow.started == 1
    elsewhere = dataclasses.replace(setup, store=str(tmp_path / "elsewhere"))
    Worker(elsewhere).run(config.to_dict(), None)
    assert HereAndNow.started == 1 + 4
    sizes = [Store(place.store).load(config.trial_id).micro_batch_size for place in (setup, elsewhere)]
    assert sizes == [5, 5]  # 40, 20 and 10 are too large, as 24, 12 and 6 were


def test_a_trial_that_changes_settings_of_its_process_is_the_last_one_there(setup, monkeypatch):
    for name, started in (("tests.sweeps.test_worker:meddling", 2), ("noisy_quadratic", 1)):
        HereAndNow.started = 0
        alone = Worker(setup)
        for seed in (0, 1):
            monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # as it is in a new process
            workload = Choice(name=name, options={} if ":" in name else {"dimension": 30})
            config = dataclasses.replace(CONFIG, workload=workload, seed=seed)
            answer = alone.run(config.to_dict(), None)
            assert answer.keys() == {"status", "notes"}
            if started == 1:
                assert answer["notes"] == []
            else:
                (note,) = answer["notes"]
                assert note.startswith("trials change torch.backends.cudnn, so each of them runs in a new process")
        assert HereAndNow.started == started


def test_memory_that_one_example_fills_is_an_answer_and_so_is_a_full_one_outside_of_steps(setup):
    for options, starts in ({"holds": 0}, 6), ({"holds": 50, "where": "validation"}, 1):
        HereAndNow.started = 0
        config = dataclasses.replace(CONFIG, workload=Choice(name=CONFIG.workload.name, options=options))
        answer = Worker(setup).run(config.to_dict(), None)
        assert (answer["status"], answer["message"]) == ("OUT_OF_MEMORY", "no room on the device")
        assert HereAndNow.started == starts  # 24, 12, 6, 3, 2 and 1
        assert not Store(setup.store).contains(config)


def test_a_trial_that_goes_on_elsewhere_keeps_its_passes(tmp_path):
    class Killed(Exception):
        pass

    def killed(rows):
        if rows[-1].step > 20:
            raise Killed

    checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=0.0)
    with pytest.raises(Killed):
        run_trial(whole(CONFIG), checkpoint=checkpoint, monitor=killed, most=7)
    resumed = run_trial(whole(CONFIG), checkpoint=checkpoint)
    undisturbed = run_trial(whole(CONFIG), most=7)
    assert resumed.micro_batch_size == undisturbed.micro_batch_size == 7
    np.testing.assert_array_equal(resumed.steps["train_loss"], undisturbed.steps["train_loss"])
    assert str(resumed.evaluations) == str(undisturbed.evaluations)


class Scripted(HereAndNow):
    """Answers as it is told, in the order in which processes are started."""

    answers: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.answer = Scripted.answers.pop(0)

    def call(self, function: str, setup: Setup, place: Place, *args: Any, heard: Any, silence: float) -> Any:
        heard({"step": 0})
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_process_killed_for_its_memory_starts_again_with_half(setup, monkeypatch):
    monkeypatch.setattr(worker, "Child", Scripted)
    kills = iter(range(100))
    monkeypatch.setattr(worker, "killed_for_memory", lambda: next(kills))
    Scripted.answers = [Died(-9, None, []), Died(-9, None, []), {"status": "REACHED", "notes": []}]
    assert Worker(setup).run(CONFIG.to_dict(), None)["status"] == "REACHED"
    assert PassSizes(setup.store, 1).most(CONFIG.to_dict()) == 6


@pytest.mark.parametrize(
    ("answers", "key", "words"),
    [
        ([{"status": "FAILED", "message": "connection reset"}, Died(-9, None, ["last"])], "died", "SIGKILL"),
        ([Died(-11, None, []), {"status": "FAILED", "message": "connection reset"}], "died", "SIGSEGV"),
        ([{"status": "FAILED", "message": "connection reset"}, CbsError("not like this")], "fatal", "not like this"),
        ([{"status": "REACHED", "notes": []}, {"status": "FAILED", "message": "on purpose"}], "message", "on purpose"),
    ],
)
def test_of_several_processes_the_one_that_is_the_cause_is_told(setup, monkeypatch, answers, key, words):
    monkeypatch.setattr(worker, "Child", Scripted)
    Scripted.answers = list(answers)
    found = Worker(dataclasses.replace(setup, workers=2)).run(CONFIG.to_dict(), None)
    assert words in found[key]


class Forked:
    """In place of a child, which imports torch anew: a fork, which answers once."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=Forked.answer, args=(theirs,))
        self.process.start()

    @staticmethod
    def answer(connection: Any) -> None:
        function, args = connection.recv()
        connection.send(HereAndNow().call(function, *args, heard=lambda said: None, silence=60.0))

    def call(self, *asked: Any, heard: Any, silence: float) -> Any:
        self.connection.send((asked[0], asked[1:]))
        return self.connection.recv()

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.process.join()


TWO = dataclasses.replace(whole(CONFIG), micro_batch_size=4, probe=Choice(name="auto", options={"every": 1}))


def trained_by_two(folder: str) -> dict[str, Any]:
    both = Worker(Setup(store=folder, path=".", threads=1, prune_factor=None, silence=60.0, workers=2))
    try:
        return both.run(TWO.to_dict(), None)
    finally:
        both.close()


@pytest.mark.parametrize("forked", kinds([True], [False]))
def test_two_processes_train_as_one_does(forked, tmp_path):
    """Three passes of each are the six groups of one process: the same moments, too."""
    Store(tmp_path).prepare()
    if forked:
        here = "from tests.sweeps import test_worker as here; here.worker.Child = here.Forked; "
        done = fresh.python(f"{here}print(here.trained_by_two({str(tmp_path)!r}))", ROOT)
        answer = ast.literal_eval(done.stdout) if done.stdout else done.stderr
    else:
        answer = trained_by_two(str(tmp_path))
    assert answer == {"status": "REACHED", "notes": []}
    found = Store(tmp_path).load(TWO.trial_id)
    alone = run_trial(dataclasses.replace(TWO, probe=Choice(name="accumulation", options={"every": 1})))
    assert found.timing["workers"] == 2
    assert (alone.steps["small_batch_size"] == 4).all()
    assert found.steps_to_target == pytest.approx(alone.steps_to_target, rel=1e-5)
    assert set(found.steps) == set(alone.steps)
    for name, column in alone.steps.items():
        np.testing.assert_allclose(found.steps[name], column, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_trial_goes_on_from_its_checkpoint(tmp_path):
    workload = Choice(name="tests.sweeps.test_worker:mortal", options={"folder": str(tmp_path)})
    config = dataclasses.replace(CONFIG, workload=workload, probe=Choice(name="auto", options={"every": 1}))
    (tmp_path / "flag").touch()
    both = Worker(Setup(store=str(tmp_path), path=".", threads=1, prune_factor=None, silence=60.0, workers=2))
    try:
        answer = both.run(config.to_dict(), None)
        assert "was killed by SIGKILL" in answer.get("died", str(answer))
        assert not answer["hung"]
        done = len((tmp_path / "passes-1").read_text().splitlines())
        assert both.run(config.to_dict(), None)["status"] == "REACHED"
    finally:
        both.close()
    found = Store(tmp_path).load(config.trial_id)
    assert done == 60
    assert len((tmp_path / "passes-1").read_text().splitlines()) < done + found.final_step
    alone = dataclasses.replace(whole(config), probe=Choice(name="accumulation", options={"every": 1}))
    for name, column in run_trial(alone).steps.items():
        np.testing.assert_allclose(found.steps[name], column, rtol=1e-4, atol=1e-5, err_msg=name)


def test_an_error_of_the_model_is_an_answer_in_one_line(setup):
    config = dataclasses.replace(
        CONFIG, workload=Choice(name=CONFIG.workload.name, options={"where": "error", "holds": 9})
    )
    answer = Worker(setup).run(config.to_dict(), None)
    assert answer["status"] == "FAILED"
    assert answer["message"].startswith("ValueError: on purpose")
    assert "\n" not in answer["message"]


def test_losses_that_are_not_one_per_example_end_the_sweep(setup):
    config = dataclasses.replace(
        CONFIG, workload=Choice(name=CONFIG.workload.name, options={"where": "half", "holds": 99})
    )
    assert "one loss per example, shape [24], got shape [12]" in Worker(setup).run(config.to_dict(), None)["fatal"]


def test_a_file_that_cannot_be_read_is_found_again(tmp_path):
    for content in ("[", "[1]", '{"a": 1}', '{"a": {"b": 2}}', '{"a": {"2": Infinity}}'):
        (tmp_path / TOO_LARGE).write_text(content)
        assert PassSizes(str(tmp_path), 1).most(CONFIG.to_dict()) is None
    PassSizes(str(tmp_path), 1).too_large(CONFIG.to_dict(), 24)
    assert PassSizes(str(tmp_path), 1).most(CONFIG.to_dict()) == 12
    assert PassSizes(str(tmp_path), 2).most(CONFIG.to_dict()) is None  # other shares
    smaller = dataclasses.replace(CONFIG, batch_size=23)
    assert PassSizes(str(tmp_path), 1).most(smaller.to_dict()) is None  # of a larger batch nothing follows


@pytest.mark.slow
def test_main_memory_that_is_full_halves_passes_too(tmp_path):
    workload = Choice(name="tests.sweeps.test_worker:tight", options={"megabytes": 60})
    config = dataclasses.replace(CONFIG, workload=workload)
    alone = Worker(Setup(store=str(tmp_path), path=".", threads=1, prune_factor=None, silence=60.0))
    try:
        assert alone.run(config.to_dict(), None).get("message", "") == ""
    finally:
        alone.close()
    found, whole_batch = Store(tmp_path).load(config.trial_id), run_trial(whole(CONFIG))
    assert found.micro_batch_size in (3, 6, 12)
    np.testing.assert_allclose(found.steps["train_loss"], whole_batch.steps["train_loss"], rtol=1e-4, atol=1e-5)
