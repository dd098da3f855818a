"""Programs of one's own: branches that they train, results that they print, and their logs."""

import contextlib
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.registry.commands import command_line, masked
from cbs.training.parents import parent_at
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.external.asked import _within, asked_sweep, check_there, told_first, told_secrets
from sweeps.external.curve import LoggedCurve
from sweeps.external.process import OUTPUT, Process
from sweeps.external.run import run_command
from sweeps.external.trainer import trained_by
from sweeps.recipes import RECIPES
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype
from tests.sweeps.test_external import PLACES as ALL_PLACES
from tests.sweeps.test_external import UNITS, asked, trainer, trial

ROOT = Path(__file__).parents[2]
PLACES = "{batch_size} {lr}"
NANOGPT = '''
"""Prints what nanoGPT prints, of runs whose steps to a loss of 3 are (40 + 640 / B) (1 + log2(lr / 0.004)^2 / 20)."""
import math, os, sys, time
given = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--"))
size, lr = int(given["batch_size"]), float(given["learning_rate"])
accumulation = int(given.get("gradient_accumulation_steps", 40))
print(f"tokens per iteration will be: {size * accumulation * int(given.get('block_size', 256)):,}")
steps = (40 + 640 / size) * (1 + math.log2(lr / 0.004) ** 2 / 20)
for step in range(0, 1001, int(given["eval_interval"])):
    loss = 5.5 * math.exp(-step / steps * math.log(5.5 / 3))
    print(f"step {step}: train loss {loss + 0.01:.4f}, val loss {loss:.4f}")
    print(f"iter {step}: loss {loss + 0.1:.4f}, time 30.79ms, mfu 0.01%")
time.sleep(0 if given.get("ends") else 60)
'''


def sweep(*names: str) -> Sweep:
    optimizers = tuple(Choice(name=name) for name in names)
    return Sweep(
        name="x",
        trial=prototype(workload=Choice(name="text")),
        axes=Axes(optimizers=optimizers, batch_sizes=(8,), seeds=(4, 5)),
    )


def run(tmp_path: Path, words: str, **options: Any) -> TrialResult:
    (tmp_path / "train.py").write_text(NANOGPT)
    command = f"{sys.executable} -S train.py --batch_size={{batch_size}} --learning_rate={{lr}} --block_size=32 {words}"
    made = trainer(command, **{"tokens_per_example": 32, "metric": "val_loss", **options})
    return run_command(trial(made, lr=0.004), tmp_path / "run", path=str(tmp_path))


def test_a_program_that_only_prints_is_followed_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    result = run(tmp_path, "--eval_interval=20", reads="stdout(step=step, metric=val loss)")
    assert result.status is TrialStatus.REACHED, result.message  # although it holds back its output and never ends
    assert result.timing["seconds"] < 30
    assert [(row.step, row.value) for row in result.evaluations[:2]] == [(0, 5.5), (20, 4.9715)]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("train {batch} {lr} {seed}", {}, r"no {batch_size} but {batch}: if that is it, write {batch_size}"),
        ("train {bs} {lr} {seed}", {}, r"no {batch_size} but {bs}"),
        ("train {batch_size} {learning_rate}", {}, r"no {lr} but {learning_rate}"),
        ("train {lr}", {}, r"no {batch_size}: every batch size would give the same run"),
        (f"cd x && train {PLACES}", {}, r"has 'cd', but no shell runs it: write bash -c"),
        (f"A=1 train {PLACES} > log", {}, r"has '>', but no shell runs it"),
        (f"train {PLACES}", {"reads": "jsonl"}, r"no {folder}.*--reads 'stdout\(step=PATTERN"),
        (f"train {PLACES}", {"reads": "stdout(step=x)"}, r"write stdout\(step=PATTERN"),
    ],
)
def test_a_command_that_cannot_be_meant_names_what_can(command: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.sub(r"([{}])", r"\\\1", said)):
        trainer(command, **{"reads": "report", **options})
    trainer(f"bash -c 'cd x && train {PLACES} > log' --data .", reads="report")


@pytest.mark.parametrize(
    ("command", "parent", "words"),
    [
        ("train {batch_size} {lr} {seed} {folder} {steps}", True, "every trial would start from scratch"),
        (
            "train {batch_size} {lr} {seed} {folder} {steps} {checkpoint}",
            False,
            "give the checkpoint with --from-checkpoint",
        ),
    ],
)
def test_a_checkpoint_that_nobody_reads_or_gives_is_refused(
    command: str, parent: bool, words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=words):
        trained_by(
            trainer(command, reads="jsonl"),
            sweep("adamw").replace(parent=parent_at(tmp_path / "file") if parent else None),
            None,
            [],
            (128,),
        )


def test_a_command_without_a_seed_runs_once_and_says_so_first() -> None:
    made = trained_by(trainer(f"train {PLACES}", reads="report"), sweep("adamw"), 1.0, ())
    assert made.axes.seeds == (4,)
    lines = told_first(made, 2)
    assert "each trial has 2 cores (OMP_NUM_THREADS=2)" in lines[0]
    assert "no {seed}" in lines[1]
    assert "intervals are wide" in lines[1]
    assert told_first(sweep("adamw"), 1) == []
    options = dict.fromkeys(("workload", "batch_sizes", "lrs", "schedule", "axis", "from_checkpoint", "budget"))
    program = {**UNITS, "command": f"train {PLACES}", "reads": "report", "columns": [], "resume": None}
    with pytest.raises(ConfigError, match="3 seeds would be one run, counted several times; add it, or give --seeds 1"):
        asked_sweep(
            sweep("adamw"), {**options, "optim": ["adamw"], "target": 1.0, "settings": (), "seeds": "3"}, program
        )


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("nosuchprogram {lr}", "no program 'nosuchprogram'"),
        ("python nosuch.py --out x.py", "nosuch.py is not in"),
        ("python -u there.py {lr}", ""),
        ("python -c 'import mine' gone.py", ""),
        ("python -m mine gone.py", ""),
        ("python {folder}/made.py", ""),
        ("cat gone.py", ""),
    ],
)
def test_a_program_or_script_that_is_not_there_is_named_before_any_trial(command, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda program: None if program == "nosuchprogram" else program)
    (tmp_path / "there.py").touch()
    with pytest.raises(ConfigError, match=problem) if problem else contextlib.nullcontext():
        check_there(command)


@pytest.mark.parametrize(
    ("command", "optimizers", "settings", "said"),
    [
        (f"train {ALL_PLACES}", ("adamw", "lamb"), (), "would give the same run"),
        (f"train {ALL_PLACES} {{beta2}}", ("adamw",), (), "has {beta2}, which is none of"),
        (f"train {ALL_PLACES} {{steps}}", ("adamw",), (), "max_steps=N"),
        (f"train {ALL_PLACES}", ("adamw",), ("schedule.name=cosine",), "the program decides it"),
        (f"train {ALL_PLACES}", ("adamw",), ("clip_norm=1",), "the program decides it"),
    ],
)
def test_a_sweep_of_trials_that_would_be_alike_or_settings_that_would_do_nothing_is_refused(
    command: str, optimizers: tuple[str, ...], settings: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said.replace("{", r"\{")):
        trained_by(trainer(command), asked(*optimizers), 1.0, settings)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("train.py --api-key sk-1 --lr {lr}", "train.py --api-key *** --lr {lr}"),
        ("train.py --hf_token=abc --password 'x y'", "train.py --hf_token=*** --password ***"),
        ("train.py --tokens-per-example 32 --token-file f", "train.py --tokens-per-example 32 --token-file f"),
    ],
)
def test_keys_in_command_lines_are_not_shown(typed, shown, monkeypatch):
    assert masked(typed) == shown
    assert [shown in line for line in told_secrets(typed)] == ([] if typed == shown else [True])
    monkeypatch.setattr(sys, "argv", ["cbs", "sweep", "--command", typed])
    assert shlex.split(command_line()) == ["cbs", "sweep", "--command", shown]


def test_a_line_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    made = trainer(reads="csv")
    curve = LoggedCurve(made, trial(made), tmp_path, resumed=False)
    for text, values in (("step,loss\n1,4.0\n2,0", [4.0]), ("step,loss\n1,4.0\n2,0.75\n", [4.0, 0.75])):
        (tmp_path / "log.csv").write_text(text)
        assert curve.update(whole=False)
        assert [row.value for row in curve.evaluations] == values
    assert not curve.update(whole=False)
    (tmp_path / "log.csv").write_text("step,loss\n1,4.0\n2,0.75\n3,0.5")
    assert curve.update(whole=True)
    assert curve.evaluations[-1].value == 0.5


@pytest.mark.parametrize(("left", "said"), [([2, 3], "begins at step 2"), ([], "is empty")])
def test_a_log_that_loses_its_beginning_is_refused(tmp_path: Path, left: list[int], said: str) -> None:
    def log(steps: list[int]) -> None:
        lines = [json.dumps({"step": step, "loss": 4.0 - step}) for step in steps]
        (tmp_path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))

    curve = LoggedCurve(trainer(), trial(trainer()), tmp_path, resumed=False)
    log([0, 1])
    assert curve.update(whole=False)
    log(left)
    assert not curve.update(whole=False)
    assert (len(curve.evaluations), said in curve.problem) == (2, True), curve.problem
    log([0, 1, 2])  # it was being written anew
    assert curve.update(whole=True)
    assert (len(curve.evaluations), curve.problem) == (3, "")


def test_what_is_no_file_in_a_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 0, "loss": 3}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere.jsonl").symlink_to("gone")
    curve = LoggedCurve(trainer(), trial(trainer()), tmp_path, resumed=False)
    assert [path.name for path in curve._files()] == ["log.jsonl"]
    assert curve.update(whole=True)


def test_of_a_program_that_talks_without_end_the_end_is_kept(tmp_path: Path) -> None:
    talks = "import os\nfor i in range(100): os.write(1, b'x' * 9999 + b'\\n')\nos.write(1, b'last words')"
    process = Process([sys.executable, "-S", "-c", talks], tmp_path, str(tmp_path), {}, most=2**16)
    try:
        assert process.wait(60)
        assert process.talked()
        assert (tmp_path / OUTPUT).stat().st_size <= 2**12
        assert process.last_words().endswith("| last words")
        assert not (process.talked() and process.talked())
    finally:
        process.end()


ANOTHER = "the log says that batch_size is 16, but the trial's is 8; does the command count"


@pytest.mark.parametrize(
    ("reads", "name", "log", "problem"),
    [
        ("table", "log.csv", "step,loss,batch_size\n1,4.0,16\n", ANOTHER),
        ("table", "log.csv", "step,loss\n1,4.0\n10,3.0\n5,2.0\n", "the log goes back from step 10 to 5: two runs in"),
        ("report", "report.jsonl", '{"step": 1, "examples": 16, "loss": 4.0}\n', "not steps times the batch size 8"),
    ],
)
def test_a_log_of_another_trial_is_refused(tmp_path: Path, reads: str, name: str, log: str, problem: str) -> None:
    made = trainer(reads=reads)
    curve = LoggedCurve(made, trial(made), tmp_path, resumed=False)
    (tmp_path / name).write_text(log)
    assert not curve.update(whole=True)
    assert problem in curve.problem
    assert curve.hopeless is (problem == ANOTHER)


@pytest.mark.parametrize(
    ("budgets", "sizes"),
    [
        ((300,), (4, 8, 16)),
        ((2000, 50_000), (4, 8, 16, 32, 64, 128)),
        ((1,), (4,)),
        ((), RECIPES.make("default").axes.batch_sizes),
    ],
)
def test_batch_sizes_whose_warmup_does_not_fit_into_a_budget_are_left_out(
    budgets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert _within(RECIPES.make("default"), budgets).axes.batch_sizes == sizes
