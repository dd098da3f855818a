"""The training scripts in ``docs/examples``, run as the first lines of each say."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

import cli
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target
from sweeps.external.asked import program_of
from sweeps.external.run import run_command

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
SLOW = ("huggingface_trainer", "lightning_module")  # Import what takes longer to import than all else here to run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in sorted(FOLDER.glob("*.py"))
        if "cbs sweep" in path.read_text()
    ],
)
def test_an_example_trains_to_its_target(name: str, tmp_path: Path) -> None:
    command = re.search(r"^(cbs sweep .*?)\n(?:\n|\"\"\")", (FOLDER / f"{name}.py").read_text(), re.M | re.S)
    assert command is not None
    words = shlex.split(command.group(1).replace("\\\n", " "))[2:]
    sweep = typer.main.get_command(cli.application()).commands["sweep"]  # type: ignore[attr-defined]
    asked = sweep.make_context("sweep", words).params
    program = program_of(
        command=asked["command"].replace("python ", f"{sys.executable} "),
        columns=asked["column"],
        optimizers=asked["optim"],
        **{
            key: asked[key]
            for key in (
                "reads", "metric", "direction", "metric_unit", "example_unit", "tokens_per_example",
                "resume", "target",
            )
        },
    )  # fmt: skip
    assert program is not None
    trial = TrialConfig(
        workload=program.choice(),
        optimizer=Choice(name="adamw"),
        lr=0.01,
        batch_size=16,
        seed=1,
        target=Target(metric=program.metric, value=asked["target"]),
        max_steps=10**9,
        probe=None,
    )
    result = run_command(trial, tmp_path / "run", path=str(FOLDER))
    assert result.status is TrialStatus.REACHED, (result.message, (tmp_path / "run" / "output.log").read_text()[-2000:])
    assert len(result.evaluations) >= 3
    assert result.evaluations[-1].examples == 16 * result.evaluations[-1].step
