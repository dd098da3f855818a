"""A trial that dies and is started again ends bitwise as if it had been left alone."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cbs import Choice, Schedule, Target, TrialConfig, run_trial
from cbs.errors import ResultsError
from cbs.optimizers import OPTIMIZERS
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.store import Store
from cbs.workloads import TrainingStream, Workload, build_workload
from tests.kinds import kinds, kinds_of

# What is validated is not what is tested; 512 sequences would take most of the time.
TEXT = Choice(name="text", options={"validation_sequences": 8, "context": 8, "layers": 1})


class Killed(Exception):
    """Stands for the death of the process."""


def killed_at(step: int):
    def monitor(rows):
        if rows[-1].step >= step:
            raise Killed

    return monitor


def config(optimizer: str, **changes: object) -> TrialConfig:
    values = {
        "workload": TEXT,
        "optimizer": Choice(name=optimizer),
        "lr": OPTIMIZERS[optimizer].lr_grid[len(OPTIMIZERS[optimizer].lr_grid) // 2],
        "batch_size": 4,
        "seed": 3,
        "target": Target(metric="validation_loss", value=1.0),
        "max_steps": 24,
    }
    return TrialConfig(**(values | changes))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return build_workload(TEXT)


def assert_resumes_to_the_same_bytes(
    trial: TrialConfig, workload: Workload, tmp_path: Path, kills: tuple[int, ...] = (7, 14)
) -> Checkpoint:
    """Killed and run to its end, a trial leaves the files of one that was left alone."""
    undisturbed = run_trial(trial, workload=workload)
    for step in kills:
        checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=0.0)
        with pytest.raises(Killed):
            run_trial(trial, workload=workload, checkpoint=checkpoint, monitor=killed_at(step))
        assert checkpoint.path.exists()
    resumed = run_trial(trial, workload=workload, checkpoint=Checkpoint(tmp_path / "trial.pt", seconds=0.0))
    for name, result in (("a", undisturbed), ("b", resumed)):
        Store(tmp_path / name).prepare()
        Store(tmp_path / name).save(result)
    for file in ("record.parquet", "steps.parquet"):
        a, b = (tmp_path / name / "trials" / trial.trial_id / file for name in ("a", "b"))
        assert a.read_bytes() == b.read_bytes()
    return checkpoint


QUICK = ("adamw", "merit", "muon", "schedule_free")
"""Of each way to keep a state: by torch, in blocks, in parts, with weights of its own."""


@pytest.mark.parametrize("optimizer", kinds_of(OPTIMIZERS.names(), QUICK))
def test_a_resumed_trial_leaves_the_same_bytes(optimizer, workload, tmp_path):
    checkpoint = assert_resumes_to_the_same_bytes(config(optimizer), workload, tmp_path, kills=(11,))
    checkpoint.remove()
    assert not checkpoint.path.exists()
    checkpoint.remove()


class Dropping(torch.nn.Module):
    """A model whose forward passes draw random numbers."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, torch.nn.Dropout(0.2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.inner(ids))


class Masking:
    """Training data that draw random numbers beside their own generator, as augmentations do."""

    def __init__(self, inner: TrainingStream, draw: Callable[[torch.Size], torch.Tensor]) -> None:
        self.inner, self.draw = inner, draw

    def next(self, examples: int) -> torch.Tensor:
        batch = self.inner.next(examples)
        return batch.where(self.draw(batch.shape) > 0.1, 0)


DRAWS: dict[str, Callable[[torch.Size], torch.Tensor]] = {
    "torch": torch.rand,
    "numpy": lambda shape: torch.from_numpy(np.random.random(shape)),
    "random": lambda shape: torch.tensor([random.random() for _ in range(shape.numel())]).view(shape),
}


@pytest.mark.parametrize(("model", "data"), [(True, "numpy"), (False, "random")])
def test_so_does_one_that_draws_random_numbers(model, data, tmp_path, monkeypatch):
    drawing = build_workload(TEXT)
    build, stream = drawing.build_model, drawing.training_stream
    if model:
        monkeypatch.setattr(drawing, "build_model", lambda: Dropping(build()))
    if data:
        monkeypatch.setattr(drawing, "training_stream", lambda generator: Masking(stream(generator), DRAWS[data]))
    assert_resumes_to_the_same_bytes(config("adamw"), drawing, tmp_path)


def test_a_probe_that_fell_back_does_so_no_second_time(tmp_path, monkeypatch):
    class Mixing(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            logits = self.inner(ids)
            return logits - 0.1 * logits.mean(0)

    mixing = build_workload(TEXT)
    build = mixing.build_model
    monkeypatch.setattr(mixing, "build_model", lambda: Mixing(build()))
    trial = config("adamw", probe=Choice(name="auto", options={"every": 1}), micro_batch_size=2)
    undisturbed = run_trial(trial, workload=mixing)
    checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=0.0)
    with pytest.raises(Killed):
        run_trial(trial, workload=mixing, checkpoint=checkpoint, monitor=killed_at(7))
    resumed = run_trial(trial, workload=mixing, checkpoint=checkpoint)
    measured = np.isfinite(undisturbed.steps["noise_trace"])
    assert measured.all()
    np.testing.assert_array_equal(resumed.steps["noise_trace"], undisturbed.steps["noise_trace"])


def test_it_goes_on_from_the_checkpoint_and_not_from_the_start(tmp_path):
    trial = config("adamw")
    with pytest.raises(Killed):
        run_trial(trial, checkpoint=Checkpoint(tmp_path / "trial.pt", seconds=0.0), monitor=killed_at(20))
    seen = []
    run_trial(
        trial,
        checkpoint=Checkpoint(tmp_path / "trial.pt", seconds=0.0),
        monitor=lambda rows: seen.append(rows[-1].step),
    )
    assert seen
    assert min(seen) > 1


def written(path: Path, trial: TrialConfig) -> Path:
    """The checkpoint of a trial that was killed."""
    with pytest.raises(Killed):
        run_trial(trial, checkpoint=Checkpoint(path, seconds=0.0), monitor=killed_at(20))
    return path


@pytest.mark.parametrize(
    "damage", kinds(["cut off", "steps without rows", "code"], ["text", "empty", "of another model"])
)
def test_a_damaged_checkpoint_is_set_aside_and_the_trial_starts_anew(tmp_path, damage):
    trial, path = config("adamw"), tmp_path / "trial.pt"
    if damage in ("text", "empty"):
        path.write_bytes(b"not a checkpoint" if damage == "text" else b"")
    elif damage == "cut off":
        written(path, trial)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "code":
        torch.save({"model": RunsCode(tmp_path / "ran")}, path)
    else:
        state = torch.load(written(path, trial), weights_only=True)
        if damage == "steps without rows":
            state["evaluations"][-1]["step"] = 10**15
        else:
            state["parts"]["SavedWeights"]["model"] = {"another": torch.zeros(3)}
        torch.save(state, path)
    checkpoint = Checkpoint(path, seconds=1e9)
    found, expected = run_trial(trial, checkpoint=checkpoint), run_trial(trial)
    assert found.evaluations == expected.evaluations
    (note,) = checkpoint.notes
    assert "trial.pt.damaged" in note
    assert "\n" not in note
    assert [file.name for file in tmp_path.iterdir()] == ["trial.pt.damaged"]


class RunsCode:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_checkpoint_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot write"):
        Checkpoint(tmp_path / "file" / "trial.pt").save({})

    def full(state, file):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed\nmore")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ResultsError, match=r"cannot write checkpoint .*file write failed") as error:
        Checkpoint(tmp_path / "trial.pt").save({})
    assert "\n" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


TWO_STAGES = Schedule(
    name="two_stage", warmup_examples=8, decay_examples=80, options={"boundary_examples": 40, "rewarmup_examples": 16}
)


@pytest.mark.parametrize(
    "changes",
    [
        {"averaging": Choice(name="ema", options={"half_life": 40})},
        {"averaging": Choice(name="lawa", options={"checkpoints": 3, "every_examples": 12})},
        pytest.param({"clip_norm": 1.5}, marks=pytest.mark.slow),
        pytest.param({"schedule": TWO_STAGES}, marks=pytest.mark.slow),
    ],
    ids=["ema", "lawa", "clip_norm", "two_stage"],
)
def test_so_does_one_with_more_state(changes, workload, tmp_path):
    assert_resumes_to_the_same_bytes(config("adamw", **changes), workload, tmp_path)


def test_short_trials_write_none(tmp_path):
    checkpoint = Checkpoint(tmp_path / "trial.pt")
    with pytest.raises(Killed):
        run_trial(config("adamw"), checkpoint=checkpoint, monitor=killed_at(20))
    assert not checkpoint.path.exists()


def test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_the_last(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        whole = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, whole=whole: order.append(name) or whole(*args))
    Checkpoint(tmp_path / "trial.pt").save({"a": torch.zeros(3)})
    assert order == ["fsync", "replace"]


def test_writing_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = iter(np.arange(0.0, 1000.0, 10.0))
    monkeypatch.setattr("cbs.trial.checkpoint.time.monotonic", lambda: next(clock))
    checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=30.0)
    checkpoint.save({"a": torch.zeros(3)})  # seems to take 10 s
    assert [checkpoint.due() for _ in range(30)].index(True) >= 10 / 0.05 / 10 - 2
