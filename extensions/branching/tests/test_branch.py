"""Branches of a run: what is asked for, what is run, what is kept, and that it goes on where it stopped."""

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.training.parents import digest
from cbs.training.run import run_trial
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.workloads import build_workload
from extensions.branching.plan import BranchPlan, branch_plan
from extensions.branching.policies import Branch
from sweeps.launching.ledger import clean, ledgers
from sweeps.launching.loop import run_sweep
from sweeps.outlook.cost import Cost
from sweeps.recipes import RECIPES
from sweeps.running import tuning
from sweeps.search.search import Limits
from sweeps.spec.spec import Sweep
from tests.sweeps.alone import one_after_the_other

SHORT: dict[str, Any] = {"at": "25%,50%", "factors": "1/2,1,2", "window": "128"}
ASKED = SHORT | {"error": 0}


def asked(**changes: Any) -> Sweep:
    plain = RECIPES.make("default").on("noisy_quadratic")
    return plain.replace(
        **{
            "workload": Choice(name="noisy_quadratic", options={"dimension": 20}),
            "optimizers": (Choice(name="adamw"),),
            "batch_sizes": (8,),
            "lrs": (0.02,),
            "budgets": (640,),
            "seeds": (0, 1),
            "probe": None,
            "name": "branch",
        }
        | changes
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the trials that run, in this process and without timing."""
    ids: list[str] = []

    def watched(runs: Any, resources: Any, ahead: Any) -> None:
        search = runs.run.search
        take = search.next

        def following() -> Any:
            config = take()
            ids.extend([] if config is None else [config.trial_id])
            return config

        search.next = following
        one_after_the_other(runs, resources, ahead)

    monkeypatch.setattr(tuning, "run_search", watched)
    monkeypatch.setattr("sweeps.launching.loop.timed_apart", lambda *arguments: Cost())
    return ids


def branched(folder: Path, sweep: Sweep | None = None, **changes: Any) -> Any:
    return run_sweep(sweep or asked(), folder, policy=Branch(**ASKED | changes))


def stored(folder: Path, *, with_steps: bool = True) -> Iterator[TrialResult]:
    return Store(folder).results(with_steps=with_steps)


# -- what is asked for ---------------------------------------------------------------------------------------------


def plan(**changes: Any) -> BranchPlan:
    return branch_plan(**{"batch_size": 16, "examples": 10_000, "lr_rule": "sqrt"} | SHORT | changes)


def test_shares_and_examples_are_whole_batches_of_the_trunk() -> None:
    assert plan(at="5%,10%,80%").at == (496, 992, 8000)
    assert plan(at="1k,2000").at == (992, 2000)
    assert plan(at="0.001%").at == (16,)
    assert plan().factors == {8: Fraction(1, 2), 16: 1, 32: 2}
    assert plan(factors="0.25,3").factors == {4: Fraction(1, 4), 48: 3}


def test_a_window_is_whole_batches_of_every_branch() -> None:
    assert plan(window="100").window == 128
    assert plan(window="5%").window == 512
    assert plan(window=None).window == 20 * 32
    assert plan(window=None, examples=10**6).window == 20_000
    assert plan(factors="2,3", window="960").window == 960
    # twice what is wanted is not too much, and a little more is
    assert plan(batch_size=2, factors="1,3/2", window="3").window == 6
    with pytest.raises(ConfigError, match="only every 30 examples"):
        plan(batch_size=2, factors="3,5", window="10")


@pytest.mark.parametrize(
    ("rule", "lrs"),
    [
        ("sqrt", [{8: 0.0707107, 16: 0.1, 32: 0.141421}]),
        ("linear", [{8: 0.05, 16: 0.1, 32: 0.2}]),
        ("8:1e-3,16:2e-3,32:3e-3,64:1", [{8: 1e-3, 16: 2e-3, 32: 3e-3}]),
    ],
)
def test_learning_rates_of_branches(rule: str, lrs: list[dict[int, float]]) -> None:
    assert [dict(rates.lrs) for rates in plan(lr_rule=rule).rates(0.1)] == lrs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"factors": "1/32"}, r"1/32 of batch size 16 is 0.5 examples"),
        ({"factors": "1,x"}, "multiples of the batch size"),
        ({"factors": "0"}, "multiples of the batch size"),
        ({"factors": "1,2/2"}, "appears twice"),
        ({"factors": "1,3", "micro_batch_size": 32}, r"batch of 48 is not a whole number of micro-batches of 32"),
        ({"at": "120%"}, "is not a share of the trunk"),
        ({"at": "20k"}, "ends after 10,000 examples"),
        ({"at": "5%,5.01%"}, "same update"),
        ({"at": "soon"}, "or a share of the trunk"),
        ({"at": "5%", "examples": None}, "give a number of examples"),
        ({"window": "-3"}, "--window -3"),
        ({"factors": "15,16,17", "window": "4080"}, "only every 65,280 examples"),
        ({"lr_rule": "cube"}, "a rule for learning rates is"),
        ({"lr_rule": "8:1e-3"}, r"no learning rate for batch size 16"),
    ],
)
def test_what_cannot_be_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        plan(**changes)
    assert "\n" not in str(error.value)


# -- what is run ---------------------------------------------------------------------------------------------------


def test_trunk_and_branches_are_trials_of_one_folder_and_the_branch_that_differs_in_nothing_is_the_trunk(
    tmp_path: Path, started: list[str]
) -> None:
    report = branched(tmp_path, asked(probe=RECIPES.make("default").trial.probe))
    trials = list(stored(tmp_path))
    (trunk,) = [trial for trial in trials if trial.config.parent is None]
    branches = [trial for trial in trials if trial.config.parent is not None]
    assert len(branches) == 2 * 3 * 2
    assert len(started) == len(set(started)) == 13
    for trial in branches:
        parent = trial.config.parent
        assert (parent.source, parent.trunk) == (trunk.config.fingerprint, trunk.config.fingerprint)
        assert parent.batch_factor == trial.config.batch_size / 8
        assert parent.lr_factor == trial.config.lr / 0.02 == pytest.approx(parent.batch_factor**0.5, rel=1e-5)
        assert trial.evaluations[0].step == trial.evaluations[0].examples == 0
        assert trial.final_examples == 128
        assert parent.digest == digest(Store(tmp_path).kept_folder(parent.source) / f"{parent.examples}.pt")
    assert {t.config.parent.examples for t in branches if t.config.parent} == {160, 320}
    for at in (160, 320):
        (same,) = [
            t for t in branches
            if t.config.parent and (t.config.seed, t.config.batch_size, t.config.parent.examples) == (0, 8, at)
        ]  # fmt: skip
        for name in set(trunk.steps) - {"step", "examples"}:
            whole = trunk.steps[name][at // 8 : (at + 128) // 8]
            np.testing.assert_array_equal(same.steps[name], whole, err_msg=name)
    assert report.content["share_of_trunk"] == pytest.approx(12 * 128 / 640)
    assert {trial.status for trial in branches} == {TrialStatus.BUDGET_EXHAUSTED}
    assert (report.content["branches"], report.content["trunks"]) == (12, [trunk.trial_id])
    assert report.lines[-1] == f"next: cbs local {tmp_path}"


def test_the_same_command_runs_nothing_and_more_checkpoints_leave_what_is_there(
    tmp_path: Path, started: list[str]
) -> None:
    branched(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".pt")}
    started.clear()
    branched(tmp_path)
    assert started == []
    branched(tmp_path, at="25%,50%,75%")
    assert len(started) == 1 + 6  # the trunk once more, since a checkpoint is missing, and the new branches
    assert {path: path.read_bytes() for path in files} == files
    assert not clean(tmp_path)
    (ledger,) = ledgers(tmp_path)
    assert ledger.problems == ledger.left_over == []


def one_by_one(folder: Path, **changes: Any) -> Any:
    sweep = asked(seeds=(0, 1, 2), workload=Choice(name="noisy_quadratic"))
    wide = {"factors": "1/2,1,2,4,8", "at": "25%,50%", "window": "640", "within": 0.004, "error": 0.1}
    return run_sweep(sweep, folder, policy=Branch(**wide | changes))


def test_the_sequential_test_runs_the_branches_that_it_needs_and_no_others(tmp_path: Path, started: list[str]) -> None:
    report = one_by_one(tmp_path / "told")
    branches = [trial for trial in stored(tmp_path / "told", with_steps=False) if trial.config.parent]
    early, late = report.content["tested"]
    assert early["branches"] + late["branches"] == len(branches) == len(started) - 1 < 2 * 5 * 2
    assert (early["at"], late["at"], early["done"], late["done"]) == (160, 320, True, True)
    one_by_one(tmp_path / "all", error=0)
    losses: dict[tuple[int, float], list[float]] = {}
    for trial in stored(tmp_path / "all", with_steps=False):
        if parent := trial.config.parent:
            losses.setdefault((parent.examples, parent.batch_factor), []).append(trial.evaluations[-1].value)
    for checkpoint in (early, late):
        low, high = checkpoint["between"]
        base = np.array(losses[checkpoint["at"], 0.5])
        assert np.mean(losses[checkpoint["at"], low] - base) <= 0.004
        assert high is None or np.mean(losses[checkpoint["at"], high] - base) > 0.004
    assert late["between"] != [0.5, None]
    before = len(started)
    again = one_by_one(tmp_path / "told")
    assert again.content == report.content
    assert len(started) == before
    assert report.lines[-1] == f"next: cbs local {tmp_path / 'told'} --within 0.004 --noise-share 0"


def ending(status: TrialStatus, above: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches of larger batch sizes end with this status."""

    def run(config: Any, **how: Any) -> TrialResult:
        result = run_trial(config, **how)
        return dataclasses.replace(result, status=status) if config.parent and config.batch_size > above else result

    monkeypatch.setattr("tests.sweeps.alone.run_trial", run)


def test_a_branch_that_fails_ends_the_test_of_its_checkpoint(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending(TrialStatus.FAILED, 0, monkeypatch)
    early, late = one_by_one(tmp_path).content["tested"]
    assert (early["done"], late["done"], len(started)) == (False, False, 1 + 2 * 2)


def test_a_branch_that_diverges_is_lost(tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ending(TrialStatus.DIVERGED, 8, monkeypatch)
    report = one_by_one(tmp_path, within=10.0)
    assert [each["between"] for each in report.content["tested"]] == [[1.0, 2.0], [1.0, 4.0]]
    assert any("320: k* between 1 and 4 (" in line for line in report.lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr_rule": "tried"}, "--lr-rule tried does not go with the sequential test"),
        ({"factors": "2"}, "--factors 2 does not go with the sequential test"),
        ({"seeds": (0,)}, "a single seed does not go with the sequential test"),
        ({"error": 1.0}, "--error must be 0 or more and below 1, got 1"),
        ({"within": 0.0}, "--within must be a number above 0, got 0"),
    ],
)
def test_what_a_sequential_test_cannot_be_is_refused(changes: dict[str, Any], words: str, started: Any) -> None:
    seeds = changes.pop("seeds", (0, 1))
    with pytest.raises(ConfigError, match=words):
        Branch(**SHORT | changes).check(asked(seeds=seeds), limits=Limits(), source=None)


def test_other_optimizers_branch_from_one_trunk_after_a_warmup(tmp_path: Path, started: list[str]) -> None:
    both = asked(optimizers=(Choice(name="adamw"), Choice(name="sgd")), seeds=(0,))
    with pytest.raises(ConfigError, match="not of 'sgd'"):
        branched(tmp_path / "cold", both, trunk_optimizer="adamw", at="50%")
    branched(tmp_path, both, trunk_optimizer="adamw", at="50%", warmup=32)
    parents = {
        (trial.config.optimizer.name, trial.config.parent.source, trial.config.parent.warmup_examples)
        for trial in stored(tmp_path)
        if trial.config.parent
    }
    (source,) = {source for _, source, _ in parents}
    assert parents == {("adamw", source, 32), ("sgd", source, 32)}
    each = branched(tmp_path / "each", both, at="50%")
    assert len(set(each.content["trunks"])) == 2


def test_a_preview_says_what_runs_and_what_it_costs(tmp_path: Path, started: list[str]) -> None:
    policy = Branch(**ASKED)
    before = policy.preview(asked_resolved(), tmp_path, None, 1).content
    branched(tmp_path)
    assert before["trials"] == len(started)
    assert before["examples"] == sum(trial.final_examples for trial in stored(tmp_path))
    assert before["share_of_trunk"] == 12 * 128 / 640
    assert any("240.0 % of its trunk" in line for line in policy.preview(asked_resolved(), tmp_path, None, 1).lines)


def asked_resolved() -> Sweep:
    from sweeps.launching.launch import resolve

    return resolve(asked())


def test_checkpoints_of_other_runs_take_the_place_of_a_trunk(tmp_path: Path, started: list[str]) -> None:
    model = build_workload(asked().trial.workload).build_model()
    for at, scale in ((80, 1.0), (160, 0.5)):
        torch.save(
            {"model": {name: value * scale for name, value in model.state_dict().items()}}, tmp_path / f"{at}.pt"
        )
    given = [f"{tmp_path / '160.pt'}@160", f"{tmp_path / '80.pt'}@80"]
    with pytest.raises(ConfigError, match="holds no optimizer state"):
        branched(tmp_path / "kept", asked(budgets=(128,)), checkpoints=given)
    started.clear()
    branched(tmp_path / "out", asked(budgets=(128,)), checkpoints=given, state="reset")
    trials = list(stored(tmp_path / "out", with_steps=False))
    assert len(trials) == len(started) == 12
    starts: dict[int, set[float]] = {}
    for trial in trials:
        assert trial.config.parent
        assert trial.config.parent.source == str(tmp_path / f"{trial.config.parent.examples}.pt")
        starts.setdefault(trial.config.parent.examples, set()).add(trial.evaluations[0].value)
    assert [len(starts[at]) for at in (80, 160)] == [1, 1]
    assert min(starts[80]) > 3 * min(starts[160])
    with pytest.raises(ConfigError, match="add how many examples its run had seen"):
        branched(tmp_path / "x", asked(budgets=(128,)), checkpoints=[str(tmp_path / "80.pt")], state="reset")


def of_ours(folder: Path) -> Path:
    """A checkpoint at 320 examples that a trunk of 8 examples a batch left."""
    branched(folder, asked(seeds=(0,)), at="50%", factors="1")
    (trunk,) = [trial for trial in stored(folder, with_steps=False) if trial.config.parent is None]
    return Store(folder).kept_folder(trunk.config.fingerprint) / "320.pt"


def test_a_checkpoint_of_other_examples_than_were_said_is_refused(tmp_path: Path, started: list[str]) -> None:
    path = of_ours(tmp_path / "trunk")
    with pytest.raises(ConfigError, match=r"320\.pt@160: the run of this checkpoint had seen 320 examples"):
        branched(tmp_path / "out", asked(budgets=(128,)), checkpoints=[f"{path}@160"])


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_sizes": (8, 16)}, "--trunk-batch"),
        ({"lrs": (0.1, 0.2)}, "one learning rate"),
        ({"budgets": (320, 640)}, "needs --budget"),
        ({"averaging": Choice(name="ema", options={"decay": 0.9})}, "give half_life=EXAMPLES instead of decay"),
    ],
)
def test_a_trunk_that_is_none_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        Branch(**ASKED).check(asked(**changes), limits=Limits(), source=None)


def test_a_window_beyond_the_data_is_refused(tmp_path: Path, monkeypatch: Any, started: list[str]) -> None:
    monkeypatch.setattr("cbs.workloads.noisy_quadratic.NoisyQuadraticWorkload.training_examples", 447, raising=False)
    with pytest.raises(ConfigError, match="the data end after 447 examples, and the last branch begins at 320"):
        branched(tmp_path)
    assert started == []
    monkeypatch.setattr("cbs.workloads.noisy_quadratic.NoisyQuadraticWorkload.training_examples", 448, raising=False)
    branched(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a trunk needs --budget"),
        (["--budget", "1e4", "--factors", "1/32"], "1/32 of batch size 16 is 0.5 examples"),
        (["--budget", "1e4", "--set", "parent.optimizer=half"], "keep or reset"),
        (["--budget", "1e4", "--set", "policy=once"], "of 'cbs sweep' alone"),
        (["--budget", "1e4", "--trunk-optim", "lion"], "add it with --optim"),
        (["--from-checkpoint", "gone.pt@800", "--window", "640"], "no checkpoint at gone.pt"),
        (["--command", "echo {batch_size} {lr} {seed} {folder} {steps}", "--metric", "loss", "--direction", "below",
          "--metric-unit", "nats", "--example-unit", "tree", "--budget", "1e4"], "trunk is trained by your program"),
    ],
)  # fmt: skip
def test_the_command_says_in_a_line_what_is_wrong(
    words: list[str], said: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = [] if "--command" in words else ["--workload", "noisy_quadratic"]
    code, _, err = run("branch", *plain, "--optim", "adamw", *words, "--dry-run")
    assert code == 2, err
    assert said in err
    assert len(err.strip().splitlines()) == 1
