"""What Lightning's CSVLogger leaves: written by itself, by a Trainer, and in every way it can be wrong."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from cbs.errors import DataError
from tests.analysis.read.importers.sources import CURVES, curves_of, settings, write_csv

PATTERN = "{optimizer}-b{batch_size}-lr{lr}-s{seed}"
BOTH = {"optimizer": "adamw", "lr": "1e-3", "batch_size": "4"}
needs_lightning = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    write_csv(top / "version_0" / "metrics.csv", rows)
    (top / "version_0" / "hparams.yaml").write_text(
        "".join(f"{key}: {value}\n" for key, value in config.items()) or "{}"
    )
    return top


@needs_lightning
def test_what_a_csv_logger_writes_comes_back(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    for curve in CURVES[:4]:
        logger = CSVLogger(tmp_path / "in", name="lightning_logs")
        logger.log_hyperparams({"lr": curve.lr, "data": {"batch": curve.batch_size}, "optimizer": "adamw"})
        for step, value in curve.rows:
            logger.log_metrics({"train_loss": 9.0}, step=step)
            logger.log_metrics({"loss": value}, step=step)
        logger.finalize("success")
    columns = {"lr": "config.lr", "batch_size": "config.data.batch", "optimizer": "config.optimizer"}
    imported = import_runs([tmp_path / "in"], tmp_path / "out", settings(columns=columns))
    assert imported.detected == [f"{tmp_path / 'in'} read as lightning: 4 metrics.csv with hparams.yaml beside it"]
    assert curves_of(tmp_path / "out") == {
        f"lightning_logs/version_{index}": curve.rows for index, curve in enumerate(CURVES[:4])
    }
    assert {(trial.config.batch_size, trial.config.lr) for trial in imported.trials} == {
        (curve.batch_size, curve.lr) for curve in CURVES[:4]
    }


@needs_lightning
def test_steps_of_a_trainer_are_updates_made(tmp_path: Path) -> None:
    """Against the count of updates that the module itself logs."""
    import lightning
    import torch
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch).square().mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", self.layer(batch).square().mean())
            self.log("updates", float(self.global_step))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    loader = torch.utils.data.DataLoader(torch.randn(12, 2), batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, val_check_interval=2,
        logger=[CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "events")],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Module(), loader, loader)
    for source in (tmp_path / "csv", tmp_path / "events"):
        imported = import_runs([source], tmp_path / f"{source.name}-out", settings(constants=BOTH))
        ours = [row.step for row in imported.trials[0].evaluations]
        own = import_runs(
            [source], tmp_path / f"{source.name}-own", settings(constants=BOTH, columns={"step": "updates"})
        )
        assert ours == [row.step for row in own.trials[0].evaluations] == [1, 2, 3, 4, 5, 6]
        assert any("1 was added" in note for note in imported.notes)
        assert not any("1 was added" in note for note in own.notes)


def test_objects_in_settings_are_not_made(tmp_path: Path) -> None:
    source = write_run(tmp_path / "in", [{"step": 1, "loss": 3.0}], {})
    (source / "version_0" / "hparams.yaml").write_text(
        "lr: 0.5\nmodel: !!python/object/apply:os.system ['touch made']\nname: !!python/tuple [a]\n"
    )
    constants = {"optimizer": "adamw", "batch_size": "4"}
    wanted = settings(columns={"lr": "config.lr"}, constants=constants)
    assert import_runs([source], tmp_path / "out", wanted).trials[0].config.lr == 0.5
    with pytest.raises(DataError, match=r"has no config\.model"):
        import_runs([source], tmp_path / "more", settings(columns={"lr": "config.model"}, constants=constants))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("hparams.yaml", "a: [1", r"cannot read .*hparams\.yaml.*copy it again"),
        ("hparams.yaml", "just words", "it is not a mapping"),
        ("metrics.csv", "", r"metrics\.csv is empty"),
        ("metrics.csv", "step,loss\n1,2\n1", "line 3: 1 cells where the header has 2"),
        ("metrics.csv", "step,los\n1,2\n", "no run has the metric 'loss'; available: los"),
        ("metrics.csv", "steps,loss\n1,2\n", r"no column 'step'; it has steps, loss; see --column step=THEIRS"),
        ("metrics.csv", "step,loss\n,2\n", "line 2, column 'step': it is empty where 'loss' is not"),
    ],
)
def test_a_broken_run_is_one_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    source = write_run(tmp_path / "in", [{"step": 1, "loss": 3.0}], {})
    (source / "version_0" / name).write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        import_runs([source], tmp_path / "out", settings(constants=BOTH), format="lightning")
    assert "\n" not in str(caught.value)
