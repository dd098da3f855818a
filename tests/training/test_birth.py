"""A trial that starts from a checkpoint: it is the trunk where nothing differs, and tells what does not fit."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cbs.compute import seeding
from cbs.errors import CbsError, ConfigError
from cbs.schedules.learning_rate import build_schedule
from cbs.training import birth
from cbs.training.loop import TrainingLoop
from cbs.training.parents import KeptCheckpoints, digest, kept_path, read_checkpoint
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import Choice, Schedule, TrialConfig
from cbs.trial.parent import Parent
from cbs.trial.record import TrialResult, TrialStatus
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.kinds import kinds
from tests.training import birth_ranks_worker

TRUNK = quadratic(
    "adamw",
    {"dimension": 30},
    target=1e-9,
    lr=0.02,
    batch_size=8,
    seed=5,
    max_steps=60,
    stops_at_target=False,
    schedule=Schedule(name="cosine", warmup_examples=80, decay_examples=600),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of :data:`TRUNK` after 320 examples."""
    folder = tmp_path_factory.mktemp("kept")
    run_trial(TRUNK, kept=KeptCheckpoints(folder, [320]))
    return kept_path(folder, 320)


def born(path: Path, trunk: TrialConfig = TRUNK, *, examples: int = 320, **changes: Any) -> TrialConfig:
    """A branch of the trunk, with its batch size, to its end."""
    of_parent = {name: changes.pop(name) for name in ("optimizer_state", "warmup_examples") if name in changes}
    if "optimizer_state" in of_parent:
        of_parent["optimizer"] = of_parent.pop("optimizer_state")
    parent = Parent(source=str(path), examples=examples, digest=digest(path), **of_parent)
    left = {"max_steps": trunk.max_steps - examples // trunk.batch_size, "parent": parent}
    return dataclasses.replace(trunk, **left | changes)


def same(one: TrialResult, other: TrialResult) -> bool:
    return repr(one.evaluations) == repr(other.evaluations) and all(
        np.array_equal(one.steps[name], other.steps[name], equal_nan=True) for name in one.steps
    )


def check_continued(trunk: TrialConfig, tmp_path: Path, at: int = 320) -> None:
    """The branch with the trunk's batch size, learning rate and seed is the trunk, bit for bit."""
    whole = run_trial(trunk, kept=KeptCheckpoints(tmp_path, [at]))
    branch = run_trial(born(kept_path(tmp_path, at), trunk, examples=at))
    done = at // trunk.batch_size
    assert branch.steps.keys() == whole.steps.keys()
    for name, column in branch.steps.items():
        offset = {"step": done, "examples": at}.get(name, 0)
        assert np.array_equal(column + offset, whole.steps[name][done:], equal_nan=True), name
    assert branch.evaluations[-1].value == whole.evaluations[-1].value
    assert branch.evaluations[0].step == branch.evaluations[0].examples == 0


@pytest.mark.parametrize("name", kinds(["adamw", "muon", "schedule_free"], ["sgd", "merit"]))
def test_a_branch_that_differs_in_nothing_is_the_trunk_bit_for_bit(name: str, tmp_path: Path) -> None:
    check_continued(dataclasses.replace(TRUNK, optimizer=Choice(name=name)), tmp_path)


@pytest.mark.parametrize(
    "averaging",
    [
        Choice(name="ema", options={"half_life": 200.0}),
        Choice(name="lawa", options={"checkpoints": 3, "every_examples": 60}),
    ],
    ids=str,
)
def test_averages_go_on(averaging: Choice, tmp_path: Path) -> None:
    check_continued(dataclasses.replace(TRUNK, averaging=averaging), tmp_path)


def test_random_numbers_and_the_places_that_a_probe_measures_go_on(tmp_path: Path, monkeypatch: Any) -> None:
    workload = build_workload(TRUNK.workload)
    losses = workload.example_losses
    noisy = lambda model, batch: losses(model, batch + 0.1 * torch.randn(batch.shape))  # noqa: E731
    monkeypatch.setattr(workload, "example_losses", noisy)
    probe = Choice(name="accumulation", options={"every": 7})
    trunk = dataclasses.replace(TRUNK, probe=probe, micro_batch_size=4)
    whole = run_trial(trunk, workload=workload, kept=KeptCheckpoints(tmp_path, [320]))
    branch = run_trial(born(kept_path(tmp_path, 320), trunk), workload=workload)
    assert branch.steps["train_loss"].tolist() == whole.steps["train_loss"][40:].tolist()
    np.testing.assert_array_equal(branch.steps["noise_trace"], whole.steps["noise_trace"][40:])
    assert 0 < np.isfinite(branch.steps["noise_trace"]).sum() < 20


def test_keeping_checkpoints_changes_nothing_of_the_trunk_and_writes_them_once(tmp_path: Path) -> None:
    plain, whole = run_trial(TRUNK), run_trial(TRUNK, kept=KeptCheckpoints(tmp_path, [8, 321]))
    assert same(plain, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["321.pt", "8.pt"]
    before = {path: (digest(path), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    run_trial(TRUNK, kept=KeptCheckpoints(tmp_path, [8, 321]))
    assert before == {path: (digest(path), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert torch.load(tmp_path / "321.pt", weights_only=True)["batch_sizes"].tolist() == [8] * 41


class AlwaysDue(Checkpoint):
    """Is written at every evaluation, however quick these are."""

    def due(self) -> bool:
        return True


class Dies(Exception):
    """In place of a kill."""


def killed(config: TrialConfig, step: int, **given: Any) -> None:
    def alive(now: int) -> None:
        if now == step:
            raise Dies

    with pytest.raises(Dies):
        run_trial(config, alive=alive, **given)


def test_ten_kills_of_trunk_and_branch_end_in_the_same_bytes(tmp_path: Path) -> None:
    trunk = dataclasses.replace(TRUNK, averaging=Choice(name="ema", options={"half_life": 200.0}))
    whole = run_trial(trunk, kept=KeptCheckpoints(tmp_path / "whole", [160, 320]))
    wanted = [digest(kept_path(tmp_path / "whole", at)) for at in (160, 320)]
    rng = np.random.default_rng(0)
    checkpoint = AlwaysDue(tmp_path / "trunk.pt")
    for step in np.sort(rng.integers(2, 60, size=5)).tolist():
        killed(trunk, step, checkpoint=checkpoint, kept=KeptCheckpoints(tmp_path / "cut", [160, 320]))
    cut = run_trial(trunk, checkpoint=checkpoint, kept=KeptCheckpoints(tmp_path / "cut", [160, 320]))
    assert same(whole, cut)
    assert [digest(kept_path(tmp_path / "cut", at)) for at in (160, 320)] == wanted
    branch = born(kept_path(tmp_path / "cut", 160), trunk, examples=160, batch_size=16, max_steps=20, lr=0.03)
    undisturbed = run_trial(branch)
    checkpoint = AlwaysDue(tmp_path / "branch.pt")
    for step in np.sort(rng.integers(2, 20, size=5)).tolist():
        killed(branch, step, checkpoint=checkpoint)
    assert same(undisturbed, run_trial(branch, checkpoint=checkpoint))


@pytest.mark.parametrize("before", kinds([8], [0, 200]))
def test_a_trunk_that_would_go_on_behind_a_missing_checkpoint_starts_over(before: int, tmp_path: Path) -> None:
    checkpoint = AlwaysDue(tmp_path / "trunk.pt")
    killed(TRUNK, 50, checkpoint=checkpoint)
    saved = checkpoint.load()
    at = saved["evaluations"][-1]["examples"] - before
    assert at > 100
    run_trial(TRUNK, checkpoint=checkpoint, kept=KeptCheckpoints(tmp_path / "late", [at]))
    run_trial(TRUNK, kept=KeptCheckpoints(tmp_path / "whole", [at]))
    assert digest(kept_path(tmp_path / "late", at)) == digest(kept_path(tmp_path / "whole", at))


def test_a_kept_checkpoint_of_other_examples_is_refused(kept: Path) -> None:
    parent = Parent(source=TRUNK.fingerprint, examples=312, digest=digest(kept))
    with pytest.raises(ConfigError, match="was written after 320 examples, not after 312"):
        run_trial(dataclasses.replace(TRUNK, max_steps=5, parent=parent), parent=kept)


def test_data_of_one_seed_are_the_same_at_every_batch_size_and_unlike_the_trunks(kept: Path) -> None:
    drawn: dict[tuple[int, int], torch.Tensor] = {}

    class Watching:
        def __init__(self, key: tuple[int, int]) -> None:
            self.inner, self.key = build_workload(TRUNK.workload), key

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def example_losses(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            drawn[self.key] = torch.cat([drawn.get(self.key, batch[:0]), batch])
            return self.inner.example_losses(model, batch)

    for seed, batch_size in ((5, 8), (5, 16), (1, 8), (1, 32)):
        config = born(kept, batch_size=batch_size, seed=seed, max_steps=160 // batch_size, probe=None)
        run_trial(config, workload=Watching((seed, batch_size)))
    assert torch.equal(drawn[5, 8], drawn[5, 16])
    assert torch.equal(drawn[1, 8], drawn[1, 32])
    assert not torch.equal(drawn[5, 8], drawn[1, 8])


def test_options_of_a_branch_are_its_own_and_the_state_is_the_trunks(kept: Path) -> None:
    def loop_of(**changes: Any) -> TrainingLoop:
        options = {"betas": [0.8, 0.7], "weight_decay": 0.25, "eps": 1e-3}
        config = born(kept, optimizer=Choice(name="adamw", options=options), **changes)
        loop = TrainingLoop(config, build_workload(config.workload), torch.device("cpu"))
        birth.start(loop, kept)
        return loop

    loop = loop_of()
    (group,) = loop.optimizer.param_groups
    assert [*group["betas"], group["weight_decay"], group["eps"]] == [0.8, 0.7, 0.25, 1e-3]
    assert next(iter(loop.optimizer.state.values()))["step"] == 40
    assert not loop_of(optimizer_state="reset").optimizer.state


def test_another_optimizer_begins_without_a_state_after_a_stated_warmup(kept: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds the state of 'adamw', not of 'sgd'.*warmup_examples"):
        run_trial(born(kept, optimizer=Choice(name="sgd")))
    warmed = run_trial(born(kept, optimizer=Choice(name="sgd"), warmup_examples=80))
    assert warmed.status is TrialStatus.BUDGET_EXHAUSTED
    assert run_trial(born(kept, optimizer=Choice(name="sgd"), optimizer_state="reset")).final_step == 20


def test_the_digest_is_of_the_content_and_a_checkpoint_that_changed_is_refused(kept: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.pt"
    shutil.copy(kept, copy)
    config = born(copy)
    content = torch.load(copy, weights_only=True)
    torch.save(dict(content), copy, _use_new_zipfile_serialization=False)
    assert digest(copy) == digest(kept)
    content["parts"]["SavedWeights"]["model"]["theta"][3] += 1e-6
    torch.save(content, copy)
    assert digest(copy) != digest(kept)
    with pytest.raises(ConfigError, match="has changed"):
        run_trial(config)


def test_a_branch_near_its_target_has_not_diverged_where_it_first_moves_away(kept: Path) -> None:
    value = run_trial(born(kept, max_steps=1)).evaluations[0].value
    target = dataclasses.replace(TRUNK.target, value=value * (1 - 1e-6))
    config = born(kept, lr=100.0, target=target, stops_at_target=True)
    result = run_trial(config)
    assert max(row.value for row in result.evaluations) > 6 * value
    assert result.status is not TrialStatus.DIVERGED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": ""}, "path or a fingerprint"),
        ({"digest": "x"}, "16 hexadecimal digits"),
        ({"examples": -1}, "at least 0"),
        ({"batch_factor": 0.0}, "above 0"),
        ({"optimizer": "half"}, "keep or reset"),
        ({"warmup_examples": 1.5}, "whole number"),
    ],
)
def test_a_parent_is_checked(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Parent(**{"source": "file.pt", "examples": 0, "digest": "0" * 16} | changes)


def test_a_batch_schedule_does_not_go_with_a_parent(kept: Path) -> None:
    with pytest.raises(ConfigError, match="cannot start from a checkpoint"):
        born(kept, batch_schedule=Choice(name="two_phase", options={}))


def test_a_parent_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    gone = Parent(source=str(tmp_path / "gone.pt"), examples=0, digest="0" * 16)
    with pytest.raises(CbsError, match="does not exist"):
        run_trial(dataclasses.replace(TRUNK, parent=gone))


@pytest.mark.slow
def test_checkpoints_of_one_rank_start_branches_on_sharded_ranks_and_the_other_way(tmp_path: Path) -> None:
    trunk = birth_ranks_worker.TRUNK
    whole = run_trial(trunk, kept=KeptCheckpoints(tmp_path / "one", [32]))
    command = [sys.executable, "-m", "tests.training.birth_ranks_worker", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert answer.returncode == 0, answer.stderr[-2000:]
    branch = {int(step): value for step, value in json.loads(answer.stdout).items()}
    shared = [row for row in whole.evaluations if row.step - 4 in branch]
    assert len(shared) >= 3
    for row in shared:
        assert branch[row.step - 4] == pytest.approx(row.value, rel=1e-5)
    one, two = (read_checkpoint(kept_path(tmp_path / name, 32)) for name in ("one", "two"))
    assert one.model.keys() == two.model.keys()
    for name, value in one.model.items():
        torch.testing.assert_close(two.model[name], value, rtol=1e-4, atol=1e-5)


SET_ANYWAY = ("lr", "initial_lr", "weight_decay")


def test_data_of_another_workload_begin_at_their_start(kept: Path) -> None:
    noisier = Choice(name="noisy_quadratic", options={"dimension": 30, "noise": 2.0})
    drawn: list[torch.Tensor] = []
    workload = build_workload(noisier)
    losses = workload.example_losses

    def watched(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        drawn.append(batch.clone())
        return losses(model, batch)

    workload.example_losses = watched  # type: ignore[method-assign]
    run_trial(born(kept, workload=noisier, max_steps=1, probe=None), workload=workload)
    fresh = build_workload(noisier).training_stream(seeding.generator(TRUNK.seed, "data"))
    assert torch.equal(drawn[0], fresh.next(8))


def test_a_schedule_goes_on_under_a_warmup_of_the_branchs_own(kept: Path) -> None:
    branch, multiplier = run_trial(born(kept, warmup_examples=80)), build_schedule(TRUNK.schedule)
    for row in branch.evaluations[1:]:
        wanted = TRUNK.lr * multiplier(320 + row.examples) * min(1.0, row.examples / 80)
        assert row.lr == pytest.approx(wanted, rel=1e-12)


def test_what_training_has_changed_in_a_group_is_state(tmp_path: Path) -> None:
    """Also where it is an option that the optimizer changes itself."""
    trunk = dataclasses.replace(TRUNK, optimizer=Choice(name="merit"), max_steps=45)
    run_trial(trunk, kept=KeptCheckpoints(tmp_path, [320]))
    path = kept_path(tmp_path, 320)
    content = torch.load(path, weights_only=True)
    (group, *_), (at_start, *_) = content["parts"]["SavedWeights"]["optimizer"]["param_groups"], content["groups"]
    option = next(key for key, value in at_start.items() if isinstance(value, float) and key not in SET_ANYWAY)
    group[option] *= 2
    torch.save(content, path)
    config = born(path, trunk)
    loop = TrainingLoop(config, build_workload(config.workload), torch.device("cpu"))
    birth.start(loop, path)
    assert loop.optimizer.param_groups[0][option] == group[option]


def test_a_configuration_without_a_parent_is_stored_as_before(kept: Path) -> None:
    assert "parent" not in TRUNK.to_dict()
    config = born(kept)
    assert TrialConfig.from_dict(config.to_dict()) == config
    others = [
        dataclasses.replace(config.parent, **change)  # type: ignore[type-var]
        for change in (
            {"examples": 8}, {"digest": "0" * 16}, {"lr_factor": 2}, {"optimizer": "reset"}, {"warmup_examples": 1},
        )
    ]  # fmt: skip
    prints = {dataclasses.replace(config, parent=parent).fingerprint for parent in others}
    assert len(prints | {config.fingerprint, TRUNK.fingerprint}) == len(others) + 2
