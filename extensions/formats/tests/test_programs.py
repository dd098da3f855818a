"""Programs of one's own whose logs are of a known program or service, followed while they run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cbs.errors import ConfigError
from cbs.trial.record import TrialStatus
from sweeps.external import curve
from sweeps.external.asked import told_first
from sweeps.external.run import run_command
from sweeps.external.trainer import trained_by
from tests.sweeps.test_external import trainer, trial
from tests.sweeps.test_programs import NANOGPT, PLACES, run, sweep

ROOT = Path(__file__).parents[3]


def test_a_known_program_is_followed_without_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    result = run(tmp_path, "--eval_interval=20 --gradient_accumulation_steps=1", reads="nanogpt")
    assert result.status is TrialStatus.REACHED, result.message  # although it holds back its output and never ends
    assert result.timing["seconds"] < 30
    assert [(row.step, row.value) for row in result.evaluations[:2]] == [(0, 5.5), (20, 4.9715)]


def test_a_program_that_prints_another_batch_size_is_ended_at_once(tmp_path: Path) -> None:
    result = run(tmp_path, "--eval_interval=20", reads="nanogpt")
    assert result.status is TrialStatus.FAILED
    assert result.timing["seconds"] < 30
    assert "the log says that batch_size is 320, but the trial's is 8; does the command count" in result.message


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ("nanogpt", r"give its block_size as --tokens-per-example"),
        ("trainer_log", r"no such format; known are report, .*, trainer_state"),
    ],
)
def test_what_a_known_program_leaves_open_is_asked_for(reads: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trainer(f"train {PLACES}", reads=reads)
    assert trainer(f"train {PLACES} {{folder}}", reads="trainer_state").reads == "huggingface"


@pytest.mark.parametrize(
    ("before", "surroundings", "key", "said"),
    [
        ("", {}, "", "every trial runs to its own end"),
        ("", {"WANDB_API_KEY": "k"}, "", "are followed on its server, every 10 s"),
        ("WANDB_API_KEY=k ", {}, "", "are followed on its server"),
        ("WANDB_MODE=offline ", {"WANDB_API_KEY": "k"}, "", "every trial runs to its own end"),
        ("", {"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, "", "every trial runs to its own end"),
        ("", {}, "api.wandb.ai", "are followed on its server"),
        ("", {"WANDB_BASE_URL": "https://ours.example/"}, "ours.example", "are followed on its server"),
        ("", {"WANDB_BASE_URL": "https://ours.example/"}, "api.wandb.ai", "every trial runs to its own end"),
    ],
)
def test_runs_of_wandb_are_followed_where_there_is_a_key_and_else_it_is_said_that_they_run_to_their_end(
    before: str, surroundings: dict[str, str], key: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "netrc").write_text(f"machine {key} login user password secret\n" if key else "")
    for name, value in {"NETRC": str(tmp_path / "netrc"), **surroundings}.items():
        monkeypatch.setenv(name, value)
    asked = trained_by(trainer(f"{before}train {PLACES} {{seed}} {{folder}}", reads="wandb"), sweep("adamw"), 1.0, ())
    assert asked.axes.seeds == (4, 5)
    assert said in told_first(asked, 1)[1]


class Server:
    """Stands for the server of Weights & Biases: a run whose rows arrive one by one, after two failures."""

    ADDRESS = "team/project/id7"
    LOSSES = (3.0, 2.0, 1.5, 0.5, 0.25)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, address: str) -> SimpleNamespace:
        self.asked.append(address)
        if len(self.asked) <= 2:
            raise OSError("not reached")
        rows = [{"_step": 10 * row, "loss": loss} for row, loss in enumerate(self.LOSSES[: len(self.asked) - 2])]
        parts, config = address.split("/"), {"batch": 8}
        return SimpleNamespace(
            scan_history=lambda keys: [row for row in rows if set(keys) <= row.keys()],
            path=parts, summary={"loss": 0.5}, state="running", name="one", id="id7", config=config,
        )  # fmt: skip


@pytest.mark.parametrize("online", [True, False])
def test_an_online_run_of_wandb_is_followed_and_ended_at_the_target(
    online: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Api=lambda: server, Error=KeyError))
    monkeypatch.setattr(curve, "ASK_SECONDS", 0.0)
    said = f"wandb: View run at https://wandb.ai/team/project/runs/{'id7' * online}"
    program = f"import sys, time; print({said!r}, flush=True); time.sleep({60 if online else 1})"
    made = trainer(f'{sys.executable} -S -c "{program}" {PLACES} {{folder}}', reads="wandb")
    result = run_command(trial(made), tmp_path / "run", path=str(tmp_path))
    if not online:
        assert (result.status, server.asked) == (TrialStatus.FAILED, [])
        return
    assert result.status is TrialStatus.REACHED, result.message
    assert result.timing["seconds"] < 30
    assert [(row.step, row.value) for row in result.evaluations] == [(0, 3.0), (10, 2.0), (20, 1.5), (30, 0.5)]
    assert set(server.asked) == {Server.ADDRESS}


@pytest.mark.slow
def test_nanogpt_unmodified_is_swept_answered_and_drawn_by_the_commands_of_its_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NANOGPT)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "train_shakespeare_char.py").touch()
    page = (ROOT / "docs" / "programs.md").read_text()
    section = page.partition("## nanoGPT\n")[2].partition("\n## ")[0]
    commands = [line.replace("\\\n", " ") for line in re.findall(r"^cbs (?:.*\\\n)*.*", section, re.M)]
    assert [command.split()[1] for command in commands] == ["sweep", "analyze", "report"]
    for command in commands:
        words = shlex.split(command.replace("python train.py", f"{sys.executable} -S train.py"))
        done = subprocess.run(
            [sys.executable, "-m", "cli", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=600,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if words[1] == "analyze":
            assert "Critical batch size in sequences" in done.stdout
            low, high = map(float, re.search(r"adamw +\S+ \[([\d.]+), ([\d.]+)\]", done.stdout).groups())
            assert low < 16 < high
    assert (tmp_path / "results/nanogpt/analysis/figures/steps.png").exists()
