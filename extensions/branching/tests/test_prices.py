"""What branches cost before the first runs."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from benchmarks import prices
from cbs.registry.choices import Choice
from cbs.training.parents import parent_at
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from extensions.branching.plan import AT, FACTORS, SEEDS, branch_plan
from extensions.branching.policies import Branch
from extensions.branching.prices import branch_price
from sweeps.external.run import run_command
from sweeps.external.trainer import ExternalTrainer, trained_by
from sweeps.launching.loop import run_sweep
from sweeps.outlook.cost import Cost
from sweeps.outlook.price import CriticalRun
from sweeps.recipes import RECIPES
from sweeps.running import tuning
from sweeps.running.run import Runs
from sweeps.search.search import Limits
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import Sweep
from tests.sweeps.alone import without_ray
from tests.sweeps.test_external import UNITS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("steps", [400.0, 40_000.0])  # windows of 20 updates, and of 2 % of the trunk
def test_branches_cost_at_most_what_their_dry_run_counts(steps: float) -> None:
    critical = 4096
    run = CriticalRun(examples=steps * critical, steps=steps)
    plan = branch_plan(
        batch_size=critical // 4, examples=round(1.25 * steps / 2 * critical), at=AT, factors=FACTORS, window=None,
        lr_rule="sqrt",
    )  # fmt: skip
    found = branch_price(run)
    counted = len(plan.at) * len(plan.factors) * SEEDS * plan.window
    assert found.examples[2] == pytest.approx(counted, rel=0.03)
    assert found.examples[0] < found.examples[1] < found.examples[2]
    assert branch_price(CriticalRun(examples=1.0)) is None


def test_the_page_has_the_table_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "prices.md").read_text()
    assert prices.written(page) == page, "python -m benchmarks.prices --write docs/prices.md"
    monkeypatch.setattr(prices, "RUNS", MappingProxyType({0.2: (1, 2, 3)}))
    assert prices.written(page) != page
    with pytest.raises(ValueError, match="0 places for"):
        prices.written("a page without a table")


EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PROGRAM = """
import json, sys
batch, lr, seed, out, steps, start = sys.argv[1:7]
value = json.load(open(start))["value"]
with open(out + "/log.jsonl", "w") as log:
    for step in (0, int(steps) // 2, int(steps)):
        log.write(json.dumps({"step": step, "loss": value - 0.001 * step * float(lr)}) + "\\n")
"""


def asked(command: str, **changes: Any) -> Sweep:
    sweep = RECIPES.make("quick").replace(
        name="branch", optimizers=(Choice(name="adamw"),), batch_sizes=(8,), lrs=(0.5,), seeds=(0, 1), **changes
    )
    trainer = ExternalTrainer(**UNITS, command=command, reads=changes.get("reads", "jsonl"))
    return trained_by(trainer, sweep, None, [], (128,))


def by_command(runs: Runs[Any], *_: Any) -> None:
    run = runs.run
    assert run is not None
    while (config := run.search.next()) is not None:
        result = run_command(config, run.store.root / "runs" / config.trial_id, path=str(Path.cwd()))
        run.store.save(result)
        run.search.add(result)


def test_a_program_is_told_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "run_search", by_command)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, value in (("early", 5.0), ("late", 3.0)):
        (tmp_path / name).write_text(json.dumps({"value": value}))
    command = f"{sys.executable} -S program.py {{batch_size}} {{lr}} {{seed}} {{folder}} {{steps}} {{checkpoint}}"
    sweep = asked(command, parent=parent_at(Path("late")))
    policy = Branch(error=0, factors="1/2,1,2", window="128", checkpoints=["late@800", "early@400"])
    policy.check(sweep, limits=Limits(), source=None)
    report = run_sweep(sweep, tmp_path / "out", policy=policy)
    trials = list(Store(tmp_path / "out").results())
    assert len(trials) == 2 * 3 * 2
    assert {trial.status for trial in trials} == {TrialStatus.BUDGET_EXHAUSTED}
    assert {
        (t.config.parent.source, t.config.parent.examples, t.evaluations[0].value) for t in trials if t.config.parent
    } == {("early", 400, 5.0), ("late", 800, 3.0)}
    assert report.content["share_of_trunk"] == pytest.approx(12 * 128 / 800)
    (tmp_path / "late").write_text(json.dumps({"value": 2.0}))
    run_sweep(sweep, tmp_path / "out", policy=Branch(error=0, factors="1", window="128", checkpoints=["late@800"]))
    now = parent_at(Path("late")).digest
    again = [t for t in Store(tmp_path / "out").results() if t.config.parent and t.config.parent.digest == now]
    (value,) = {trial.evaluations[-1].value for trial in again}
    assert value == pytest.approx(2.0 - 0.001 * 16 * 0.5)


@pytest.mark.slow
def test_a_trainers_checkpoints_are_branched_by_command_and_by_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    script = shlex.quote(str(EXAMPLES / "huggingface_trainer.py"))
    trunk = f"{sys.executable} {script} --batch 8 --steps 60 --keep 20 --lr 0.003 --out trunk"
    subprocess.run(shlex.split(trunk), check=True, capture_output=True)
    history = json.loads((tmp_path / "trunk" / "checkpoint-60" / "trainer_state.json").read_text())["log_history"]
    loss = {row["step"]: row["eval_loss"] for row in history if "eval_loss" in row}
    given = [f"trunk/checkpoint-{step}" for step in (30, 60)]
    # by command
    command = (
        f"{sys.executable} {script} --batch {{batch_size}} --lr {{lr}} --seed {{seed}} --out {{folder}} "
        "--steps {steps} --every 4 --start {checkpoint}"
    )
    sweep = RECIPES.make("quick").replace(
        name="branch", optimizers=(Choice(name="adamw"),), batch_sizes=(8,), lrs=(0.003,), seeds=(0,),
        parent=parent_at(Path(given[0])),
    )  # fmt: skip
    trainer = ExternalTrainer(**UNITS | {"metric": "loss"}, command=command)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "run_search", by_command)
        told = trained_by(trainer, sweep, None, [], (128,))
        run_sweep(told, tmp_path / "command", policy=Branch(error=0, factors="1,2", window="128", checkpoints=given))
    trials = list(Store(tmp_path / "command").results())
    assert len(trials) == 4
    for result in trials:
        assert result.status is TrialStatus.BUDGET_EXHAUSTED, result.message
        assert result.evaluations[0].value == pytest.approx(loss[result.config.parent.examples // 8], abs=1e-5)
        assert result.evaluations[-1].value < result.evaluations[0].value
    # by load
    monkeypatch.setattr("sweeps.launching.loop.timed_apart", lambda *arguments: Cost())
    ours = RECIPES.make("quick").on("trainer_checkpoints:counting")
    ours = ours.replace(
        name="branch", optimizers=(Choice(name="adamw"),), batch_sizes=(8,), lrs=(0.003,), seeds=(0,), budgets=(128,),
        schedule=ScheduleRule(),
    )  # fmt: skip
    for state in ("keep", "reset"):
        with without_ray():
            policy = Branch(error=0, factors="1,2", window="128", checkpoints=given, state=state)
            run_sweep(ours, tmp_path / state, policy=policy)
        trials = list(Store(tmp_path / state).results())
        assert len(trials) == 4
        for result in trials:
            # the Trainer divides by all 32 tokens, of which 31 are predicted
            assert result.evaluations[0].value * 31 / 32 == pytest.approx(
                loss[result.config.parent.examples // 8], abs=1e-4
            )
    kept, fresh = (
        {t.config.batch_size: t.steps["train_loss"][1] for t in Store(tmp_path / state).results(with_steps=True)}
        for state in ("keep", "reset")
    )
    assert all(kept[size] < fresh[size] for size in kept)  # the first update of a reset AdamW is of full size
