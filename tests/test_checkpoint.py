"""A trial that dies and is started again ends bitwise as if it had been left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cbs import Choice, Target, TrialConfig, run_trial
from cbs.checkpoint import Checkpoint
from cbs.errors import ResultsError
from cbs.optimizers import OPTIMIZERS
from cbs.store import Store
from cbs.workloads import Workload, build_workload

# What is validated is not what is tested; 512 sequences would take most of the time.
TEXT = Choice(name="text", options={"validation_sequences": 32})


class Killed(Exception):
    """Stands for the death of the process."""


def killed_at(step: int):
    def monitor(latest):
        if latest.step >= step:
            raise Killed
        return False

    return monitor


def config(optimizer: str, **changes: object) -> TrialConfig:
    values = {
        "workload": TEXT,
        "optimizer": Choice(name=optimizer),
        "lr": OPTIMIZERS[optimizer].lr_grid[len(OPTIMIZERS[optimizer].lr_grid) // 2],
        "batch_size": 4,
        "seed": 3,
        "target": Target(metric="validation_loss", value=1.0),
        "max_steps": 40,
    }
    return TrialConfig(**(values | changes))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return build_workload(TEXT)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.names())
def test_a_resumed_trial_leaves_the_same_bytes(optimizer, workload, tmp_path):
    trial = config(optimizer)
    undisturbed = run_trial(trial, workload=workload)
    for step in (7, 22):
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
    checkpoint.remove()
    assert not checkpoint.path.exists()
    checkpoint.remove()


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
    trial = config("adamw", probe=Choice(name="auto", options={"every": 1}))
    undisturbed = run_trial(trial, workload=mixing)
    checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=0.0)
    with pytest.raises(Killed):
        run_trial(trial, workload=mixing, checkpoint=checkpoint, monitor=killed_at(7))
    resumed = run_trial(trial, workload=mixing, checkpoint=checkpoint)
    measured = np.isfinite(undisturbed.steps["noise_trace"])
    assert not measured[0]
    assert measured[1:].all()
    np.testing.assert_array_equal(resumed.steps["noise_trace"], undisturbed.steps["noise_trace"])


def test_it_goes_on_from_the_checkpoint_and_not_from_the_start(tmp_path):
    trial = config("adamw")
    with pytest.raises(Killed):
        run_trial(trial, checkpoint=Checkpoint(tmp_path / "trial.pt", seconds=0.0), monitor=killed_at(20))
    seen = []
    run_trial(
        trial,
        checkpoint=Checkpoint(tmp_path / "trial.pt", seconds=0.0),
        monitor=lambda latest: seen.append(latest.step) or False,
    )
    assert seen
    assert min(seen) > 1


def test_short_trials_write_none(tmp_path):
    checkpoint = Checkpoint(tmp_path / "trial.pt")
    with pytest.raises(Killed):
        run_trial(config("adamw"), checkpoint=checkpoint, monitor=killed_at(20))
    assert not checkpoint.path.exists()


def test_a_damaged_or_unwritable_checkpoint_is_one_clear_line(tmp_path):
    (tmp_path / "trial.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ResultsError, match="delete it") as error:
        Checkpoint(tmp_path / "trial.pt").load()
    assert "\n" not in str(error.value)
    with pytest.raises(ResultsError, match="cannot write"):
        Checkpoint(tmp_path / "nowhere" / "trial.pt").save({})


def test_writing_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = iter(np.arange(0.0, 1000.0, 10.0))
    monkeypatch.setattr("cbs.checkpoint.time.monotonic", lambda: next(clock))
    checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=30.0)
    checkpoint.save({"a": torch.zeros(3)})  # seems to take 10 s
    assert [checkpoint.due() for _ in range(30)].index(True) >= 10 / 0.05 / 10 - 2
