"""States of the Hugging Face Trainer: one that it wrote itself, and those it might leave behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from analysis.read.importers import import_runs
from cbs.errors import ConfigError, DataError
from cbs.trial.store import Store
from tests.analysis.read.importers.sources import CURVES, curves_of, settings, trainer_state

BOTH = {"optimizer": "adamw", "lr": "1e-3"}


class Line(nn.Module):
    """The smallest model the Trainer takes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        error = self.weight * x - labels
        return {"loss": error.square().mean(), "logits": error}


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    (top / "a").mkdir(parents=True)
    (top / "a" / "trainer_state.json").write_text(json.dumps(config | {"global_step": 2, "log_history": rows}))
    return top


def train(folder: Path) -> list[dict[str, Any]]:
    """A real run with evaluations and checkpoints; its log."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, max_steps=12, eval_strategy="steps", eval_steps=3, save_strategy="steps",
        save_steps=6, learning_rate=0.05, logging_steps=4,
    )  # fmt: skip
    data = [{"x": torch.tensor([value]), "labels": torch.tensor([2 * value])} for value in torch.linspace(-1, 1, 64)]
    trainer = transformers.Trainer(Line(), arguments, train_dataset=data, eval_dataset=data[:8])
    trainer.train()
    trainer.evaluate()
    trainer.save_state()
    return trainer.state.log_history


@pytest.mark.slow
def test_a_run_of_the_real_trainer_comes_out_as_it_logged(tmp_path: Path) -> None:
    log = train(tmp_path / "run")
    logged = {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    wanted = settings(metric="eval_loss", target=0.5, constants=BOTH | {"batch_size": "4"})
    imported = import_runs([tmp_path / "run"], tmp_path / "out", wanted)
    assert imported.format == "huggingface"
    assert curves_of(tmp_path / "out") == {"run": sorted(logged.items())}
    assert list(logged) == [3, 6, 9, 12]
    (result,) = Store(tmp_path / "out").results()
    assert result.config.batch_size == 4
    assert "2 checkpoints are older than the latest of their run and were not used" in imported.notes
    assert "dropped 1 rows that repeat a step with the same value" in imported.notes
    one = import_runs([tmp_path / "run" / "checkpoint-6"], tmp_path / "half", wanted)
    assert [row.step for row in one.trials[0].evaluations] == [3, 6]


def test_the_global_batch_size_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(trainer_state(CURVES[0].rows))
    with pytest.raises(ConfigError, match="not known: batch_size"):
        import_runs([tmp_path], tmp_path / "out", settings(metric="eval_loss", constants=BOTH))
    columns = {"batch_size": "config.train_batch_size"}
    with pytest.raises(DataError, match="per device, without gradient accumulation"):
        import_runs([tmp_path], tmp_path / "out", settings(metric="eval_loss", constants=BOTH, columns=columns))


@pytest.mark.parametrize(("metric", "told"), [("loss", True), ("eval_loss", False)])
def test_that_a_training_loss_is_a_mean_since_the_last_log_is_told(tmp_path: Path, metric: str, told: bool) -> None:
    (tmp_path / "trainer_state.json").write_text(trainer_state(CURVES[0].rows))
    wanted = settings(metric=metric, constants=BOTH | {"batch_size": "4"})
    notes = import_runs([tmp_path], tmp_path / "out", wanted).notes
    assert any("mean of the batches trained on since its last log" in note for note in notes) is told


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "cannot read"),
        (trainer_state(CURVES[0].rows)[:100], "cannot read"),
        ("3", "it is not a mapping"),
        (b"\xff\x00", "cannot read"),
        (json.dumps({"log_history": 3}), "no list of logs"),
        (json.dumps({"log_history": [3]}), "no list of logs"),
        (json.dumps({"global_step": "x", "log_history": []}), "global_step: 'x' is not a number"),
        (trainer_state([(1, "low")]), "'low' is not a number"),  # type: ignore[list-item]
        (trainer_state([(-1, 2.0), (2, 1.0)]), "entry 2, column 'step': -1 is not"),
        (trainer_state([(1, 3.0), (1, 2.0)]), "two values at step 1"),
        (trainer_state([(0, 3.0)]), "after step 0"),
        (json.dumps({"log_history": [{"eval_loss": 1.0}]}), "has no column 'step'"),
    ],
)
def test_a_broken_state_is_one_line_and_leaves_nothing(tmp_path: Path, content: str | bytes, words: str) -> None:
    path = tmp_path / "run" / "trainer_state.json"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=words) as caught:
        import_runs([path], tmp_path / "out", settings(metric="eval_loss", constants=BOTH | {"batch_size": "4"}))
    assert "run" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
