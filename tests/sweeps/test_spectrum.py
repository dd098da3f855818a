"""Which trials the spectrum of a sweep is measured on, and that opening a folder runs nobody's code."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cbs.errors import ConfigError, ResultsError
from cbs.spectrum.measure import Effort
from cbs.spectrum.record import read
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.measuring.spectrum import measure_spectrum, runs_of
from tests.factories import trial

WORKLOAD = Choice(name="noisy_quadratic", options={"dimension": 6})
TRIAL = TrialConfig(
    workload=WORKLOAD,
    optimizer=Choice(name="sgd"),
    lr=0.02,
    batch_size=16,
    seed=0,
    target=Target(metric="validation_loss", value=0.4),
    max_steps=200,
    probe=None,
)
SMALL = Effort(nodes=3, curvature_examples=2, gradient_examples=8)


def stored(root: Path, *configs: TrialConfig, status: TrialStatus = TrialStatus.REACHED, **manifest: object) -> Path:
    """Made-up trials; those that reached the target took more steps at smaller learning rates."""
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": "small", "protocol": {"prune_factor": None}, **manifest})
    for config in configs:
        last = 0.1 if status is TrialStatus.REACHED else 1.0
        store.save(trial(config, [(0, 2.0), (round(1 / config.lr), last)], status, data_hash=None))
    return root


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Two trials that were run."""
    root = stored(tmp_path / "real")
    for seed in (0, 1):
        Store(root).save(run_trial(dataclasses.replace(TRIAL, seed=seed)))
    return root


def test_trials_are_of_the_middle_batch_size_and_the_best_learning_rate(tmp_path: Path) -> None:
    configs = [
        dataclasses.replace(TRIAL, batch_size=size, lr=lr, seed=seed)
        for size in (4, 16, 32)
        for lr in (0.01, 0.02, 0.05)
        for seed in ((0, 1) if lr < 0.05 else (1,))
    ]
    root = stored(tmp_path, *configs, dataclasses.replace(TRIAL, optimizer=Choice(name="adamw")))
    found = runs_of(root, optimizer="sgd", workload=None)
    # 0.05 takes fewer steps, but only one seed reached the target there
    assert [(config.batch_size, config.lr, config.seed) for config in found.configs] == [(16, 0.02, 0), (16, 0.02, 1)]
    assert found.leads
    assert {config.optimizer.name for config in runs_of(root, optimizer=None, workload=None).configs} == {"adamw"}


def test_without_a_trial_that_reached_the_target_there_is_the_start_alone(tmp_path: Path) -> None:
    root = stored(tmp_path, TRIAL, status=TrialStatus.BUDGET_EXHAUSTED)
    with pytest.raises(ConfigError, match=r"no trial of .* reached the target; measure at the start alone, with --at"):
        measure_spectrum(root, effort=SMALL)
    found = measure_spectrum(root, effort=SMALL, points=["start"], replicates=1)
    assert (found.points, found.trial) == (["start"], "")


def test_replicates_take_turns_at_the_seeds(real: Path) -> None:
    seen: list[str] = []
    before = torch.get_rng_state()
    found = measure_spectrum(real, effort=SMALL, replicates=3, progress=seen.append)
    assert torch.equal(torch.get_rng_state(), before)
    assert [(sample.point, sample.replicate, sample.seed) for sample in found.samples] == [
        ("start", 0, 0), ("start", 1, 1), ("start", 2, 0), ("target", 0, 0), ("target", 1, 1), ("target", 2, 0)
    ]  # fmt: skip
    assert len(seen) == 2 * 3 * SMALL.vectors
    first, second, third = (sample.of("noise")[1].tolist() for sample in found.at("start"))
    assert first not in (second, third)
    assert all(sample.value < 0.4 < sample.start_value for sample in found.at("target"))
    assert all(sample.step > 0 for sample in found.at("target"))
    assert (found.parameters, found.curvature, found.workload["name"]) == (6, "gauss_newton", "noisy_quadratic")


CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
from cbs.optimizers.sgd import sgd
from cbs.workloads.noisy_quadratic import noisy_quadratic as workload
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when it is imported, in the working folder; returns the mark."""
    mark = tmp_path / "it_ran"
    (tmp_path / "theirs_to_run.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "theirs_to_run", raising=False)
    return mark


@pytest.mark.parametrize(
    ("change", "flag", "name"),
    [
        ({"workload": Choice(name="theirs_to_run:workload", options={"dimension": 6})}, "--workload", "workload"),
        ({"optimizer": Choice(name="theirs_to_run:sgd")}, "--optim", "sgd"),
    ],
    ids=["workload", "optimizer"],
)
def test_code_that_a_record_names_runs_only_where_the_person_names_it(
    change: dict[str, Choice],
    flag: str,
    name: str,
    tmp_path: Path,
    code: Path,
    run: Callable[..., tuple[int, str, str]],
) -> None:
    root = stored(tmp_path / "theirs", dataclasses.replace(TRIAL, **change))
    small = ["--at", "start", "--replicates", 1, "--nodes", 2, "--gradient-examples", 8, "--curvature-examples", 2]
    status, out, err = run("theory", "spectrum", root, *small)
    assert (status, out) == (2, "")
    assert f"to allow it to run, add {flag} theirs_to_run:{name}" in " ".join(err.split())
    assert not code.exists()
    assert not (root / "spectrum.parquet").exists()
    status, _, err = run("theory", "spectrum", root, *small, flag, f"theirs_to_run:{name}")
    assert (status, code.exists()) == (0, True), err


def test_bad_input(tmp_path: Path) -> None:
    root = stored(tmp_path / "a", TRIAL)
    for given, message in (
        ({"optimizer": "muon"}, "has no optimizer 'muon'; it has sgd"),
        ({"workload": "text"}, "--workload text: the workload of .* is 'noisy_quadratic'"),
        ({"replicates": 0}, "replicates must be at least 1"),
        ({"points": ["end"]}, "a spectrum is measured at start or target, not at 'end'"),
    ):
        with pytest.raises(ConfigError, match=message):
            measure_spectrum(root, **given)
    with pytest.raises(ResultsError, match="was imported"):
        measure_spectrum(stored(tmp_path / "b", TRIAL, imported=[{"format": "csv"}]))
    with pytest.raises(ResultsError, match="holds no trial yet"):
        measure_spectrum(stored(tmp_path / "c"))
    with pytest.raises(ConfigError, match="holds 3 sweeps; give the folder of one"):
        measure_spectrum(tmp_path)
    other = stored(tmp_path / "d", dataclasses.replace(TRIAL, workload=Choice(name="noisy_quadratic")))
    Store(other).save(trial(TRIAL, [(0, 2.0), (9, 0.1)], TrialStatus.REACHED, data_hash=None))
    with pytest.raises(ConfigError, match="holds several workloads"):
        measure_spectrum(other)


def test_other_data_and_a_trial_that_does_not_repeat_are_refused(tmp_path: Path) -> None:
    root = stored(tmp_path / "a")
    Store(root).save(trial(TRIAL, [(0, 2.0), (9, 0.1)], TrialStatus.REACHED, data_hash="abc"))
    with pytest.raises(ConfigError, match="holds trials on different data"):
        measure_spectrum(root, effort=SMALL)
    slow = stored(tmp_path / "b", dataclasses.replace(TRIAL, lr=1e-6, max_steps=3))
    with pytest.raises(ConfigError, match="does not reach its target again here"):
        measure_spectrum(slow, effort=SMALL)


def test_the_command_stores_and_tells(real: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    small = ["--nodes", 3, "--gradient-examples", 8, "--curvature-examples", 2, "--replicates", 2]
    status, out, err = run("theory", "spectrum", real, *small)
    assert (status, err) == (0, "")
    assert "gauss-newton matrix of 6 parameters, 3 nodes" in out
    assert "target (step " in out
    assert re.search(r"largest curvature (0\.99\d+|1) ± ", out)
    assert len(read(real).samples) == 4
    status, out, _ = run("theory", "spectrum", real, *small, "--json", "--at", "start")
    told = json.loads(out)
    assert [row["point"] for row in told["points"]] == ["start"]
    assert told["points"][0]["quantities"]["noise_trace"]["error"] > 0
    assert len(read(real).samples) == 2
